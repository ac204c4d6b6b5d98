"""Tensor parallelism as the papers have it.

Calls    without sequence parallelism, per region (attention, MLP): all_reduce A forward, all_reduce A backward
         with it: all_gather A, reduce_scatter A forward; all_gather A, reduce_scatter A backward
         embedding, head and loss: all_reduce A forward, all_reduce A backward, 3 all_reduce of 4 B per token
         once a step: all_reduce of the gradients of weights that every rank holds whole but sees part of the work
Sends    8 b s h (t - 1) / t   elements per block, rank and micro-batch, ring, for two regions
Assumes  gathered inputs are kept for the backward pass (Megatron gathers them again); a norm and its router stay whole
Source   Shoeybi et al. 2019, section 3; Narayanan et al. 2021, section 3.2; Korthikanti et al. 2022, section 4.2.2
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from sympy import Add, Expr, Integer

from meshcost import symbols as sym
from meshcost.event import Event, Phase
from meshcost.models import Region, Weight
from meshcost.strategies.regions import BACKWARD, FORWARD, INSIDE, Pass, passes, tensor_regions
from meshcost.strategies.tensor.options import TensorParallel
from meshcost.strategies.view import Draft, Stage, Unit, View

_AXES = ("tensor",)


class Edge(NamedTuple):
    """What crosses the border of a region: its width per token, how often, and in which words."""

    width: Expr
    times: int
    what: str


class Crossing(NamedTuple):
    """Into a region or out of it, in which pass, at which moment."""

    way: Literal["in", "out"]
    step: Pass
    order: tuple[int, ...]


def events(tensor: TensorParallel, view: View) -> Iterator[Event]:
    """Yield the calls of blocks, of both ends of the model, and of the gradients of whole weights."""
    if tensor.size == 1:
        return
    for unit in view.units:
        if unit.kind is not None:
            for region_pass in passes(view.setting):
                for number, region in tensor_regions(unit.kind, view.setting):
                    yield from _region(view, unit, number, region, region_pass)
        elif tensor.vocabulary_parallel:
            yield from (_embedding if unit.name == "embedding" else _head)(tensor, view, unit)
    for stage in view.stages:
        yield from _whole_weights(view, stage)


def _region(view: View, unit: Unit, number: int, region: Region, step: Pass) -> Iterator[Event]:
    """Enter through column-parallel weights, leave through row-parallel ones; backward, the other way round."""
    widths = dict.fromkeys(region.inputs)
    into = [Edge(width, region.inputs.count(width), f"input of {region.name}") for width in widths]
    out = [Edge(region.output, 1, f"output of {region.name}")]
    first, last = (into, out) if step.going == "forward" else (out, into)
    yield from _edges(view, unit, first, Crossing("in", step, step.order(number, step.first)))
    yield from _edges(view, unit, last, Crossing("out", step, step.order(number, step.last)))
    if region.split_norms:
        why = f"statistics of the query and key norms, which run over all heads{step.note}"
        order = step.order(number, INSIDE - 1)
        yield from view.call(_fp32_per_token(step.phase, why), unit, order=order, repeat=region.split_norms)


def _edges(view: View, unit: Unit, edges: list[Edge], crossing: Crossing) -> Iterator[Event]:
    """Entering, collect what sequence parallelism split; leaving, sum what every rank made of its part."""
    sequence, step = view.setting.sequence_parallel, crossing.step
    if crossing.way == "in" and not sequence:
        return
    op = "all_gather" if crossing.way == "in" else "reduce_scatter" if sequence else "all_reduce"
    verb = "collect" if crossing.way == "in" else "sum"
    for edge in edges:
        yield from view.call(
            _activations(view, op, edge, step, f"{verb} the {step.gradient}{edge.what}{step.note}"),
            unit,
            order=crossing.order,
            repeat=edge.times,
        )


def _activations(view: View, op: str, edge: Edge, step: Pass, why: str) -> Draft:
    dtype = view.setting.precision.dtype("activations")
    return Draft("tensor", op, _AXES, step.phase, sym.T * edge.width * sym.b_a, dtype, why)


def _fp32_per_token(phase: Phase, why: str) -> Draft:
    return Draft("tensor", "all_reduce", _AXES, phase, 4 * sym.T, "fp32", why)


def _embedding(tensor: TensorParallel, view: View, unit: Unit) -> Iterator[Event]:
    """Each rank looks up the rows that it has; the sum over ranks is the embedding."""
    words = next((w for w in unit.held if w.group == "embedding"), None)
    if words is not None:
        edge = [Edge(words.shape[1], 1, "word embeddings")]
        yield from _edges(view, unit, edge, Crossing("out", FORWARD, (0,)))
        yield from _edges(view, unit, edge, Crossing("in", BACKWARD, (0,)))


def _head(tensor: TensorParallel, view: View, unit: Unit) -> Iterator[Event]:
    """Each rank computes the logits of its part of the vocabulary."""
    edge = [Edge(head_width(view, unit), 1, "input of the head")]
    yield from _edges(view, unit, edge, Crossing("in", FORWARD, (1,)))
    yield from _edges(view, unit, edge, Crossing("out", BACKWARD, (1,)))
    if not tensor.loss_parallel:
        logits = _activations(view, "all_gather", Edge(sym.V, 1, "logits"), FORWARD, "collect the logits")
        yield from view.call(logits, unit, order=(2,))
        return
    for number, what in enumerate(("maximum logit", "logit of the target", "sum of exponentials")):
        why = f"vocabulary-parallel cross-entropy: {what} of each token"
        yield from view.call(_fp32_per_token("forward", why), unit, order=(3, number))


def head_width(view: View, unit: Unit) -> Expr:
    """Width of what the head multiplies; a tied head is the word embedding again."""
    weights = (*unit.held, *view.setting.model.unit_weights("embedding"))
    rows = (w for w in weights if w.group in ("head", "embedding") and len(w.shape) == 2)
    return next((w.shape[1] for w in rows), sym.h)


def _whole_weights(view: View, stage: Stage) -> Iterator[Event]:
    """Weights that no rank splits, although each rank sees only some tokens (sequence parallelism), heads or experts."""
    held = [(unit.blocks, weight) for unit in stage.units for weight in unit.held if weight.trainable]
    partial = [(blocks * size, w) for blocks, w in held if (size := _partial_elements(view, w)) != 0]
    split = "norms and other whole weights"
    if not view.setting.sequence_parallel:
        kinds = {"experts" if _weighs_experts(weight) else "heads" for _, weight in partial}
        split = f"whole weights applied to split {' and '.join(sorted(kinds, reverse=True))}"
    draft = Draft(
        "tensor",
        "all_reduce",
        _AXES,
        "backward",
        Add(*(elements for elements, _ in partial)) * sym.b_g,
        view.setting.precision.dtype("reduce"),
        f"sum the gradients of {split}",
    )
    yield from view.once(draft, stage, order=(0,))


def _partial_elements(view: View, weight: Weight) -> Expr:
    if weight.group == "expert" and view.setting.experts_apart:
        return Integer(0)
    if view.is_split(weight):
        return view.whole_part(weight)
    whole = view.setting.sequence_parallel or weight.split_input or _weighs_experts(weight)
    return weight.count if whole else Integer(0)


def _weighs_experts(weight: Weight) -> bool:
    """Whether what it computes multiplies the output of experts, of which each rank has a part: its gradient is one."""
    return weight.group == "router" or ".shared_expert_gate." in weight.name
