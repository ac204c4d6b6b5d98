"""Buckets of DistributedDataParallel: which gradients are reduced together, and when they are ready.

Source   torch 2.13: compute_bucket_assignment_by_size, Reducer::rebuild_buckets; ZeroRedundancyOptimizer
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sympy import Add, Expr

from meshcost.formula import value
from meshcost.strategies.data.options import syncs_every
from meshcost.strategies.data.placed import TIED_HEAD, Placed, placed_weights
from meshcost.strategies.data.use_order import behind_attention, in_use_order
from meshcost.strategies.regions import BACKWARD, INSIDE, attention_region
from meshcost.strategies.torch_layout import module_of, planned_modules
from meshcost.strategies.view import View
from meshcost.torch_schedule import first_summed
from meshcost.units import DTYPE_BYTES

MIB = 2**20

#: The first bucket is small, so that the first all-reduce starts early, unless a person sets the size.
FIRST_MIB, DEFAULT_MIB = 1, 25


class Filled(NamedTuple):
    """Weights whose gradients are reduced together; ``ready`` is the place of the last unit that backward has to pass.

    ``late``: some of their gradients arrive only when the whole backward has ended. ``upto``: all arrive before the events
    of that unit that have a later order.
    """

    weights: tuple[Placed, ...]
    ready: int
    late: bool = False
    upto: tuple[int, ...] | None = None


class Round(NamedTuple):
    """Micro-batches of a step, from ``since`` to before ``until``, and the buckets in which they are reduced, in order."""

    since: int
    until: int | None
    buckets: list[Filled]


def rounds(view: View, stage: int) -> list[Round]:
    """List the buckets of one virtual stage: two rounds of them where they are made anew within the step."""
    weights, torch = reduced(view, stage), view.setting.torch
    if torch.find_unused_parameters and not torch.static_graph:
        # Never rebuilt: filled in registration order, and reduced from the last to the first.
        registered = list(_fill(view, weights, _limits(view)))[::-1]
        return [Round(0, None, _ready(view, stage, registered))]
    rebuilt = Round(0, None, _ready(view, stage, _fill(view, arriving(view, weights), _limits(view))))
    begin = rebuilt_at(view, stage)
    if torch.step is None or begin is None or torch.step > begin[0]:
        return [rebuilt]
    first = Round(0, None, _ready(view, stage, [tuple(weights)] if weights else []))
    if torch.step < begin[0]:
        return [first]
    before = [first._replace(until=begin[1])] if begin[1] else []
    return [*before, rebuilt._replace(since=begin[1])]


def _ready(view: View, stage: int, filled: Iterable[tuple[Placed, ...]]) -> list[Filled]:
    """Say of each bucket when all of its gradients have arrived."""
    weights = reduced(view, stage)
    first = min((x.place for x in placed_weights(view.setting, view.program.units, stage)), default=0)
    late, is_late = late_weights(view), False
    made, ready = [], max((x.place for x in weights), default=0) + 1
    behind = _behind_attention(view, stage)
    upto: tuple[int, ...] | None = None
    for group in filled:
        # A bucket waits for those before it.
        is_late |= any(x.weight.name in late for x in group)
        passed, ready = ready, first if is_late else min(ready, *(x.place for x in group))
        edges = {behind.get(x.name) for x in group if x.place == ready}
        if is_late or None in edges:
            upto = None
        elif ready < passed:
            (upto,) = edges
        # In a pipeline the end of a backward comes before its message to the next stage.
        made.append(Filled(group, ready - first, is_late and view.mesh.stages == 1, upto))
    return made


def _behind_attention(view: View, stage: int) -> dict[str, tuple[int, ...]]:
    """Weights that are used after attention around a ring, and the order that its backward has not reached then."""
    if view.mesh.size("context") == 1:
        return {}
    ordered = in_use_order(reduced(view, stage), view.setting.model)
    numbers = {kind.name: attention_region(kind) or 0 for kind in view.setting.model.kinds}
    behind = behind_attention(ordered)
    return {
        item.name: BACKWARD.order(numbers[item.label.rpartition(" ")[0]], INSIDE + 1)
        for item in ordered
        if item.name in behind
    }


def late_weights(view: View) -> frozenset[str]:
    """Weights that are DTensors: made anew at the beginning of a forward, so that their gradients come all at the end."""
    if view.mesh.size("tensor") == 1:
        return frozenset()
    planned = {module for unit in view.units for module in planned_modules(view, unit)}
    held = [weight.name for unit in view.units for weight in unit.held if module_of(weight) in planned]
    return frozenset((*held, *([TIED_HEAD] if view.setting.splits_vocabulary else ())))


def arriving(view: View, weights: Sequence[Placed]) -> list[Placed]:
    """Sort weights as their gradients arrive: by use, backwards; DTensors after all others, as registered, backwards."""
    late = late_weights(view)
    soon = [item for item in weights if item.weight.name not in late]
    return (
        in_use_order(soon, view.setting.model)[::-1]
        + [item for item in weights if item.weight.name in late][::-1]
    )


def rebuilt_at(view: View, stage: int) -> tuple[int, int] | None:
    """First step and micro-batch whose buckets follow the order in which gradients arrived before; None: never."""
    after = 2 if view.setting.torch.static_graph else 1
    if reduces_every(view):
        return divmod(after, view.program.schedule.micro_batches)
    found = first_summed(view.program.schedule, stage)
    if found is None:
        return None
    reduced_in, ahead = found
    # A stage that is reduced in the middle of a step has its buckets made anew by its next forward pass.
    return (reduced_in + after, 0) if ahead is None or after > 1 else (reduced_in, ahead)


def reduces_every(view: View) -> bool:
    """Whether gradients are reduced after each micro-batch; stages of a pipeline wait for the last."""
    return syncs_every(view.setting) and view.mesh.stages == 1


def reduced(view: View, stage: int) -> list[Placed]:
    """Weights whose gradients DistributedDataParallel reduces, in registration order: not those of spread experts."""
    apart, late = view.setting.experts_apart, late_weights(view)
    found = placed_weights(view.setting, view.program.units, stage)
    found = [x for x in found if not (apart and x.weight.group == "expert")]
    return [x for x in found if x.weight.trainable or x.weight.name in late]


def bucket_elements(view: View, weights: Sequence[Placed]) -> Expr:
    """Elements of some weights on one rank, as a formula."""
    return Add(*(view.local(item.weight) for item in weights))


def bucket_name(view: View, weights: Sequence[Placed]) -> str:
    """Name a bucket by its size: buckets of one size are one event."""
    return f"of {value(bucket_elements(view, weights), view.values)} elements"


def owners(view: View, weights: Sequence[Placed], ranks: int) -> list[list[Placed]]:
    """Deal out weights as ZeroRedundancyOptimizer does: the largest first, each to the rank that has least."""
    loads, owned = [0] * ranks, [list[Placed]() for _ in range(ranks)]
    for item in sorted(weights, key=lambda item: -_elements(view, item)):
        rank = loads.index(min(loads))
        owned[rank].append(item)
        loads[rank] += _elements(view, item)
    return owned


def _limits(view: View) -> tuple[int, int]:
    """Bytes at which the first bucket and all others are full."""
    asked = view.setting.torch.bucket_cap_mb
    if asked is None:
        return FIRST_MIB * MIB, DEFAULT_MIB * MIB
    return int(asked * MIB), int(asked * MIB)


def _fill(view: View, weights: Iterable[Placed], limits: tuple[int, int]) -> Iterator[tuple[Placed, ...]]:
    item_bytes = DTYPE_BYTES[gradient_dtype(view)]
    group: list[Placed] = []
    size, limit = 0, limits[0]
    for item in weights:
        group.append(item)
        size += int(_elements(view, item) * item_bytes)
        if size >= limit:
            yield tuple(group)
            group, size, limit = [], 0, limits[1]
    if group:
        yield tuple(group)


def gradient_dtype(view: View) -> str:
    """Data type of gradients: that in which weights are stored."""
    return view.setting.torch.weights_dtype or view.setting.precision.dtype("weights")


def _elements(view: View, item: Placed) -> int:
    return int(value(view.local(item.weight), view.values))
