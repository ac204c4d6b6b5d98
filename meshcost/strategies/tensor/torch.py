"""Tensor parallelism as PyTorch does it: DTensor placements that parallelize_module gives to every linear.

Calls    without sequence parallelism, per region (attention, MLP): all_reduce A forward; backward one all_reduce A for each
         column-parallel linear, or one for all of them with PrepareModuleInput
         with it: all_gather A, reduce_scatter A forward; all_gather A, reduce_scatter A backward
         experts split over the axis: all_reduce of the gradient of all their tokens, backward; without sequence parallelism
         also of that of the weights that each token gives them
         embedding, head and loss: all_reduce A forward, all_reduce A backward, 3 all_reduce of 4 B per token
         gradients of norms that stay partial sums: all_reduce of each weight, whenever something reads it
Sends    14 b s h (t - 1) / t   elements per block, rank and micro-batch, ring, for five column-parallel linears
Assumes  Colwise and Rowwise styles on linears, SequenceParallel on norms; checkpointing of whole blocks without reentry;
         latents and experts as torchtitan v0.2.2 plans them with sequence parallelism, experts without it as Transformers
Source   torch.distributed.tensor.parallel, torch.utils.checkpoint, torch.optim (torch 2.13); torchtitan v0.2.2;
         transformers.distributed.tensor_parallel (5.24)
"""

from collections import Counter
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
    is_shared_expert,
    is_trained,
    module_of,
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


#: Families whose models cast the weights that a token gives its experts to the data type of tokens; others keep fp32.
_ROUTES_AS_COMPUTED = ("olmoe", "qwen2_moe", "qwen3_moe")


class Border(NamedTuple):
    """One region of a block: widths per token of what enters it, and what gradients it passes on.

    ``inputs`` are those of the activations, ``columns`` the column-parallel linears that read them, ``rows`` the number
    of row-parallel ones that end in it: two where attention and MLP work beside each other. ``entry`` and ``exit`` are
    the first layers in which what enters the region, and what leaves it, needs a gradient.
    """

    number: int
    region: Region
    inputs: tuple[Expr, ...]
    columns: tuple[Weight, ...]
    rows: int
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
        # Latents are made of what enters, within the region.
        inputs = (sym.h,) if any(weight.latent for weight in stretch) else region.inputs
        columns = tuple(weight for weight in stretch if is_column(weight))
        trains = trains or any(is_trained(view, weight) for weight in stretch)
        leave = 0 if trains else first
        rows = max(sum(map(is_row, stretch)) if region.name != "experts" else 1, 1)
        yield Border(number, region, inputs, columns, rows, entry, leave, place == len(regions) - 1)


def _stretches(view: View, kind: Kind, regions: list[Region]) -> list[list[Weight]]:
    """Weights of each region: a row-parallel linear is the last of one. Experts are a region by themselves."""
    found: list[list[Weight]] = [[] for _ in regions]
    names = [region.name for region in regions]
    apart = ("experts", "shared experts")
    shared = next((names.index(name) for name in reversed(apart) if name in names), 0)
    linear = iter([at for at, name in enumerate(names) if name not in apart])
    place = next(linear, None)
    for weight in kind.weights:
        if is_shared_expert(weight):
            found[shared].append(weight)
        elif place is not None and weight.group == "block":
            found[place].append(weight)
            if is_row(weight):
                place = next(linear, place)
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
        for width in dict.fromkeys(border.inputs):
            why = f"collect the input of {name}{step.note}"
            draft = _activations(view, "all_gather", width, step.phase, why)
            yield from _unless_saved(view, unit, step, draft, enter)
    if step is RECOMPUTE and (border.is_last and view.setting.torch.early_stop):
        # Recomputation stops once the last input that backward needs is there, which is before this sum.
        return
    out = _sum(view, border.region.output, step, f"output of {name}")
    yield from _unless_saved(view, unit, step, out, leave, border.rows)


def _unless_saved(
    view: View, unit: Unit, step: Pass, draft: Draft, order: tuple[int, ...], repeat: int = 1
) -> Iterator[Event]:
    """Place a draft, unless it would be computed again and its result was saved."""
    if not (step is RECOMPUTE and draft.op in view.setting.torch.checkpoint_saves):
        yield from view.call(draft, unit, order=order, repeat=repeat)


def _split_again(view: View, unit: Unit, border: Border, order: tuple[int, ...]) -> Iterator[Event]:
    """What sequence parallelism scattered on the way out is gathered on the way back."""
    if view.setting.sequence_parallel:
        why = f"collect the gradient of the output of {border.region.name}"
        draft = _activations(view, "all_gather", border.region.output, "backward", why)
        yield from view.call(draft, unit, order=order, from_layer=border.exit)


def _gradients(view: View, unit: Unit, border: Border, order: tuple[int, ...]) -> Iterator[Event]:
    """Gradients of what column-parallel linears read: of each alone, or summed where one module prepares it for all."""
    if border.region.name == "experts":
        yield from _gradients_of_experts(view, unit, border, order)
        return
    name = border.region.name
    if view.setting.sequence_parallel or view.setting.torch.prepare_module_input:
        for width in dict.fromkeys(border.inputs):
            draft = _sum(view, width, BACKWARD, f"input of {name}")
            times = border.inputs.count(width)
            yield from view.call(draft, unit, order=order, repeat=times, from_layer=border.entry)
        return
    yield from _gradients_of_columns(view, unit, border, order)


def _gradients_of_columns(view: View, unit: Unit, border: Border, order: tuple[int, ...]) -> Iterator[Event]:
    """Each linear sums the gradient of its input, the last first; so does a norm after it, by tp_plan: auto."""
    if view.setting.torch.tp_plan is not None and any(weight.split_input for weight in unit.held):
        yield from _gradients_of_heads(view, unit, border, order)
        return
    for width, number in Counter(_width(weight) for weight in border.columns).items():
        draft = _gradient_of_input(view, width, border)
        yield from view.call(draft, unit, order=order, repeat=number, from_layer=border.entry)


def _gradients_of_heads(view: View, unit: Unit, border: Border, order: tuple[int, ...]) -> Iterator[Event]:
    """A norm of heads sums its gradient when that arrives: among those of what linears read."""
    dtype, size = computed_in(view)
    for number, weight in enumerate(reversed(_as_used(unit, border.columns))):
        place = (*order, number)
        if is_column(weight):
            draft = _gradient_of_input(view, _width(weight), border)
            yield from view.call(draft, unit, order=place, from_layer=border.entry)
        elif weight.trainable:
            why = "sum the gradient of a norm of heads"
            draft = Draft("tensor", "all_reduce", _AXES, "backward", weight.count * size, dtype, why)
            yield from view.call(draft, unit, order=place)


def _gradient_of_input(view: View, width: Expr, border: Border) -> Draft:
    what = f"sum the gradient of the input of {border.region.name}, of one linear each"
    return _activations(view, "all_reduce", width, "backward", what)


def _as_used(unit: Unit, columns: tuple[Weight, ...]) -> list[Weight]:
    """Column-parallel linears and the norms of heads that follow them, each on its own or after all of them."""
    norms = {module_of(w).removesuffix("norm"): w for w in unit.held if w.split_input and w.group == "norm"}
    pairs = ((linear, norms.get(module_of(linear).removesuffix("proj"))) for linear in columns)
    used = [weight for pair in pairs for weight in pair if weight is not None]
    told = unit.kind.use_order if unit.kind is not None else ()
    slots = {module: number for number, module in enumerate(told)}
    return sorted(used, key=lambda weight: slots.get(module_of(weight).rpartition(".")[2], len(slots)))


def _gradients_of_experts(view: View, unit: Unit, border: Border, order: tuple[int, ...]) -> Iterator[Event]:
    """Each rank has a part of every expert: it takes tokens as plain tensors, and passes on a part of their gradient."""
    sequence = view.setting.sequence_parallel
    if sequence:
        # Shared experts come last in the module, so first in its backward; what enters the module is whole again after.
        first = (*BACKWARD.order(border.number, BACKWARD.first), 1)
        yield from _gradients_of_columns(view, unit, border, first)
    if view.setting.experts_apart:
        return
    slots = sym.T * (sym.k if sequence else 1)
    if not sequence:
        why = "sum the gradient of the weights that a token gives its experts"
        dtype, size = computed_in(view) if view.setting.model.family in _ROUTES_AS_COMPUTED else ("fp32", 4)
        routing = Draft("tensor", "all_reduce", _AXES, "backward", sym.T * sym.k * size, dtype, why)
        yield from view.call(routing, unit, order=(*order, 0), from_layer=border.entry)
    dtype, size = computed_in(view)
    why = "sum the gradient of the tokens of experts split over ranks"
    draft = Draft("tensor", "all_reduce", _AXES, "backward", slots * sym.h * size, dtype, why)
    yield from view.call(draft, unit, order=(*order, 1), from_layer=border.entry)


def _width(linear: Weight) -> Expr:
    return linear.shape[0 if linear.transposed else 1]


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
