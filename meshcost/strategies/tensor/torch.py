"""Tensor parallelism as PyTorch does it: DTensor placements that parallelize_module gives to every linear.

Calls    without sequence parallelism, per region (attention, MLP): all_reduce A forward; backward one all_reduce A for each
         column-parallel linear, or one for all of them with PrepareModuleInput
         with it: all_gather A, reduce_scatter A forward; all_gather A, reduce_scatter A backward
         embedding, head and loss: all_reduce A forward, all_reduce A backward, 3 all_reduce of 4 B per token
         gradients of norms that stay partial sums: all_reduce of each weight, whenever something reads it
Sends    14 b s h (t - 1) / t   elements per block, rank and micro-batch, ring, for five column-parallel linears
Assumes  Colwise and Rowwise styles on linears, SequenceParallel on norms; checkpointing of whole blocks without reentry
Source   torch.distributed.tensor.parallel, torch.utils.checkpoint, torch.optim (torch 2.13)
"""

from collections.abc import Iterator
from typing import NamedTuple

from sympy import Expr

from meshcost import symbols as sym
from meshcost.event import Event, Phase
from meshcost.models import Kind, Region, Weight
from meshcost.strategies.data.fully_shard import by_name
from meshcost.strategies.data.torch_counts import Counts
from meshcost.strategies.regions import BACKWARD, FORWARD, RECOMPUTE, Pass, passes, tensor_regions
from meshcost.strategies.tensor.options import TensorParallel
from meshcost.strategies.tensor.textbook import head_width
from meshcost.strategies.torch_layout import (
    computed_in,
    gradients_from,
    is_column,
    is_partial,
    is_row,
    is_trained,
    partial_name,
    partial_runs,
    replicates,
    shards_weights,
)
from meshcost.strategies.view import Draft, Unit, View
from meshcost.torch_program import TorchProgram

_AXES = ("tensor",)

#: Why a gradient is summed that SequenceParallel leaves as a partial sum.
_PARTIAL = "sum the gradient of a norm that stayed a partial sum"

#: Before everything else that a block's backward does.
_AT_ONCE = (-1,)

#: How often an optimizer reads each gradient, one kernel for each weight; a fused kernel reads it once.
_READS = {"Adam": 3, "AdamW": 3, "SGD": 1}


class Border(NamedTuple):
    """One region of a block: widths per token of what its column-parallel linears read, and what gradients it passes on.

    ``entry`` and ``exit`` are the first layers in which what enters the region, and what leaves it, needs a gradient.
    """

    number: int
    region: Region
    widths: tuple[Expr, ...]
    entry: int
    exit: int
    is_last: bool


def events(tensor: TensorParallel, view: View) -> Iterator[Event]:
    """Yield the calls of blocks, of both ends of the model, and of partial gradients."""
    if tensor.size == 1:
        return
    for unit in view.units:
        if unit.kind is not None:
            for border in _borders(view, unit.kind):
                for step in passes(view.setting):
                    yield from _region(view, unit, border, step)
        elif view.setting.splits_vocabulary:
            yield from (_embedding if unit.name == "embedding" else _head)(tensor, view, unit)
        if not (shards_weights(view) or replicates(view)):
            yield from _partial(view, unit)
    if shards_weights(view):
        yield from _partial_in_groups(view)
    elif replicates(view):
        yield from _partial_before_buckets(view)


# -- blocks ----------------------------------------------------------------------------------------------------------


def _borders(view: View, kind: Kind) -> Iterator[Border]:
    """Yield the regions of a block, in order."""
    regions = list(tensor_regions(kind, view.setting))
    stretches = _stretches(view, kind, [region for _, region in regions])
    norms = [w for w in kind.weights if w.group == "norm" and not w.split_input]
    first = gradients_from(view)
    trains = False
    for place, ((number, region), stretch) in enumerate(zip(regions, stretches, strict=True)):
        trains = trains or any(is_trained(view, weight) for weight in norms[place : place + 1])
        entry = 0 if trains else first
        widths = tuple(w.shape[0 if w.transposed else 1] for w in stretch if is_column(w))
        trains = trains or any(is_trained(view, weight) for weight in stretch)
        leave = 0 if trains else first
        yield Border(number, region, widths or region.inputs, entry, leave, place == len(regions) - 1)


def _stretches(view: View, kind: Kind, regions: list[Region]) -> list[list[Weight]]:
    """Weights of each region: a row-parallel linear is the last of one. Experts are a region by themselves."""
    found: list[list[Weight]] = [[] for _ in regions]
    linear = [at for at, region in enumerate(regions) if region.name != "experts"]
    at = iter(linear)
    place = next(at, None)
    for weight in kind.weights:
        if place is None or weight.group != "block":
            continue
        found[place].append(weight)
        if is_row(weight):
            place = next(at, place)
    return found


def _region(view: View, unit: Unit, border: Border, step: Pass) -> Iterator[Event]:
    enter, leave = step.order(border.number, step.first), step.order(border.number, step.last)
    if step is BACKWARD:
        if border.is_last and view.setting.recompute == "full":
            # What a block gave away is collected before anything in it is needed again.
            enter = _AT_ONCE
        yield from _split_again(view, unit, border, enter)
        yield from _gradients(view, unit, border, leave)
        return
    name = border.region.name
    if view.setting.sequence_parallel:
        for width in dict.fromkeys(border.region.inputs):
            why = f"collect the input of {name}{step.note}"
            draft = _activations(view, "all_gather", width, step.phase, why)
            yield from _unless_saved(view, unit, step, draft, enter)
    if step is RECOMPUTE and (border.is_last and view.setting.torch.early_stop):
        # Recomputation stops once the last input that backward needs is there, which is before this sum.
        return
    out = _sum(view, border.region.output, step, f"output of {name}")
    yield from _unless_saved(view, unit, step, out, leave)


def _unless_saved(
    view: View, unit: Unit, step: Pass, draft: Draft, order: tuple[int, ...]
) -> Iterator[Event]:
    """Place a draft, unless it would be computed again and its result was saved."""
    if not (step is RECOMPUTE and draft.op in view.setting.torch.checkpoint_saves):
        yield from view.call(draft, unit, order=order)


def _split_again(view: View, unit: Unit, border: Border, order: tuple[int, ...]) -> Iterator[Event]:
    """What sequence parallelism scattered on the way out is gathered on the way back."""
    if view.setting.sequence_parallel:
        why = f"collect the gradient of the output of {border.region.name}"
        draft = _activations(view, "all_gather", border.region.output, "backward", why)
        yield from view.call(draft, unit, order=order, from_layer=border.exit)


def _gradients(view: View, unit: Unit, border: Border, order: tuple[int, ...]) -> Iterator[Event]:
    """Gradients of what column-parallel linears read: of each alone, or summed where one module prepares it for all."""
    is_prepared = view.setting.sequence_parallel or view.setting.torch.prepare_module_input
    widths = tuple(dict.fromkeys(border.region.inputs)) if is_prepared else border.widths
    what = f"input of {border.region.name}" + ("" if is_prepared else ", of one linear each")
    for width in dict.fromkeys(widths):
        draft = _sum(view, width, BACKWARD, what)
        times = widths.count(width)
        yield from view.call(draft, unit, order=order, repeat=times, from_layer=border.entry)


def _sum(view: View, width: Expr, step: Pass, what: str) -> Draft:
    op = "reduce_scatter" if view.setting.sequence_parallel else "all_reduce"
    return _activations(view, op, width, step.phase, f"sum the {step.gradient}{what}{step.note}")


def _activations(view: View, op: str, width: Expr, phase: Phase, why: str) -> Draft:
    dtype, size = computed_in(view)
    return Draft("tensor", op, _AXES, phase, sym.T * width * size, dtype, why)


# -- both ends -------------------------------------------------------------------------------------------------------


def _embedding(tensor: TensorParallel, view: View, unit: Unit) -> Iterator[Event]:
    """Each rank looks up the rows that it has; the sum over ranks is the embedding."""
    words = next((w for w in unit.held if w.group == "embedding"), None)
    if words is None:
        return
    width = words.shape[1]
    yield from view.call(_sum(view, width, FORWARD, "word embeddings"), unit, order=(0,))
    if view.setting.sequence_parallel and words.trainable:
        why = "collect the gradient of the word embeddings"
        yield from view.call(_activations(view, "all_gather", width, "backward", why), unit, order=(0,))


def _head(tensor: TensorParallel, view: View, unit: Unit) -> Iterator[Event]:
    """Each rank computes the logits of its part of the vocabulary."""
    width = head_width(view, unit)
    if view.setting.sequence_parallel:
        why = "collect the input of the head"
        yield from view.call(_activations(view, "all_gather", width, "forward", why), unit, order=(1,))
    if _trains_before_head(view, unit):
        yield from view.call(_sum(view, width, BACKWARD, "input of the head"), unit, order=(1,))
    if not tensor.loss_parallel:
        logits = _activations(view, "all_gather", sym.V, "forward", "collect the logits")
        yield from view.call(logits, unit, order=(2,))
        return
    for number, what in enumerate(("maximum logit", "sum of exponentials", "logit of the target")):
        why = f"loss on split logits: {what} of each token"
        draft = Draft("tensor", "all_reduce", _AXES, "forward", 4 * sym.T, "fp32", why)
        yield from view.call(draft, unit, order=(3, number))


def _trains_before_head(view: View, unit: Unit) -> bool:
    model = view.setting.model
    blocks = (weight for kind in model.kinds for weight in kind.weights)
    norms = (weight for weight in unit.held if weight.group == "norm")
    return any(is_trained(view, weight) for weight in (*model.before, *blocks, *norms))


# -- partial gradients -----------------------------------------------------------------------------------------------


def _partial(view: View, unit: Unit) -> Iterator[Event]:
    """Partial gradients stay as they are until something reads them."""
    options = view.setting.torch
    reads = _READS[options.optimizer] if options.optimizer else 0
    reads = min(reads, 1) if options.fused else reads
    dtype, size = computed_in(view)
    for number, (elements, times) in enumerate(partial_runs(view, unit.held)):
        if reads:
            why = f"{_PARTIAL}, each time the optimizer reads it"
            draft = Draft("tensor", "all_reduce", _AXES, "optimizer", elements * size, dtype, why)
            yield from view.each(draft, unit, "update", order=(number,), repeat=times * reads)


def _partial_before_buckets(view: View) -> Iterator[Event]:
    """DistributedDataParallel takes plain tensors, so a gradient is made whole before it joins its bucket."""
    dtype, size = computed_in(view)
    counts = Counts(view)
    weights = {partial_name(w): w for unit in view.units for w in unit.held if is_partial(view, w)}
    for part, weight in weights.items():
        draft = Draft("tensor", "all_reduce", _AXES, "backward", weight.count * size, dtype, _PARTIAL)
        yield from counts.place(draft, part, (0,))


def _partial_in_groups(view: View) -> Iterator[Event]:
    """fully_shard makes gradients whole when it is about to scatter those of a group."""
    program = view.program
    sharding = program.sharding if isinstance(program, TorchProgram) else None
    # Gradients that wait for later ones are kept in the data type in which they will be reduced.
    waits = sharding is not None and (
        sharding.staged or (sharding.gradient_sync == "last" and program.schedule.micro_batches > 1)
    )
    dtype, size = (view.setting.precision.dtype("reduce"), sym.b_g) if waits else computed_in(view)
    counts = Counts(view)
    for name, made in by_name(view.setting, program.units).items():
        for number, (elements, times) in enumerate(partial_runs(view, made.weights)):
            why = f"sum the gradients of norms that stayed partial sums, before those of {name} are scattered"
            draft = Draft("tensor", "all_reduce", _AXES, "backward", elements * size, dtype, why)
            yield from counts.place(draft, f"scatter {name}", (-1, number), repeat=times)
