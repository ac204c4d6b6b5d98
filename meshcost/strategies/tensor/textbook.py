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
from typing import TYPE_CHECKING, NamedTuple

from sympy import Add, Expr, Integer

from meshcost import symbols as sym
from meshcost.ledger import Event
from meshcost.models import Region, Weight
from meshcost.strategies.regions import ENTER, INSIDE, LEAVE, Pass, passes, tensor_regions
from meshcost.strategies.view import Stage, Unit, View

if TYPE_CHECKING:
    from meshcost.strategies.tensor.options import TensorParallel

_AXES = ("tensor",)
_FP32_BYTES = 4


class Edge(NamedTuple):
    """What crosses the border of a region: its width per token, how often, and in which words."""

    width: Expr
    times: int
    what: str


def events(tensor: "TensorParallel", view: View) -> Iterator[Event]:
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
    into = [
        Edge(width, region.inputs.count(width), f"input of {region.name}") for width in dict.fromkeys(region.inputs)
    ]
    out = [Edge(region.output, 1, f"output of {region.name}")]
    first, last = (into, out) if step.going == "forward" else (out, into)
    if view.setting.sequence_parallel:
        yield from _edges(view, unit, "all_gather", first, step, step.order(number, _at(step, ENTER)))
    yield from _edges(
        view,
        unit,
        "reduce_scatter" if view.setting.sequence_parallel else "all_reduce",
        last,
        step,
        step.order(number, _at(step, LEAVE)),
    )
    yield from _split_norms(view, unit, number, region, step)


def _at(step: Pass, moment: int) -> int:
    return moment if step.going == "forward" else 10 - moment


def _edges(
    view: View, unit: Unit, op: str, edges: list[Edge], step: Pass, order: tuple[int, ...]
) -> Iterator[Event]:
    verb = "collect" if op == "all_gather" else "sum"
    for edge in edges:
        gradient = "gradient of the " if step.going == "backward" else ""
        yield from view.call(
            "tensor",
            op,
            _AXES,
            unit,
            step.phase,
            sym.T * edge.width * sym.b_a,
            f"{verb} the {gradient}{edge.what}{step.note}",
            dtype=view.setting.precision.dtype("activations"),
            order=order,
            repeat=edge.times,
        )


def _split_norms(view: View, unit: Unit, number: int, region: Region, step: Pass) -> Iterator[Event]:
    """A norm over all heads needs the sum of squares of the other ranks: one fp32 number per token, each way."""
    if region.split_norms:
        yield from view.call(
            "tensor",
            "all_reduce",
            _AXES,
            unit,
            step.phase,
            sym.T * _FP32_BYTES,
            f"statistics of the query and key norms, which run over all heads{step.note}",
            dtype="fp32",
            order=step.order(number, INSIDE - 1),
            repeat=region.split_norms,
        )


def _embedding(tensor: "TensorParallel", view: View, unit: Unit) -> Iterator[Event]:
    """Each rank looks up the rows that it has; the sum over ranks is the embedding."""
    words = next((w for w in unit.held if w.group == "embedding"), None)
    if words is None:
        return
    edge = [Edge(words.shape[1], 1, "word embeddings")]
    forward, backward = Pass("forward", "forward", ""), Pass("backward", "backward", "")
    sequence = view.setting.sequence_parallel
    op = "reduce_scatter" if sequence else "all_reduce"
    yield from _edges(view, unit, op, edge, forward, (0,))
    if sequence:
        yield from _edges(view, unit, "all_gather", edge, backward, (0,))


def _head(tensor: "TensorParallel", view: View, unit: Unit) -> Iterator[Event]:
    """Each rank computes the logits of its part of the vocabulary."""
    width = _head_width(view, unit)
    edge = [Edge(width, 1, "input of the head")]
    forward, backward = Pass("forward", "forward", ""), Pass("backward", "backward", "")
    if view.setting.sequence_parallel:
        yield from _edges(view, unit, "all_gather", edge, forward, (1,))
    yield from _edges(
        view, unit, "reduce_scatter" if view.setting.sequence_parallel else "all_reduce", edge, backward, (1,)
    )
    if not tensor.loss_parallel:
        yield from _edges(view, unit, "all_gather", [Edge(sym.V, 1, "logits")], forward, (2,))
        return
    for number, what in enumerate(("maximum logit", "logit of the target", "sum of exponentials")):
        yield from view.call(
            "tensor",
            "all_reduce",
            _AXES,
            unit,
            "forward",
            sym.T * _FP32_BYTES,
            f"vocabulary-parallel cross-entropy: {what} of each token",
            dtype="fp32",
            order=(3, number),
        )


def _head_width(view: View, unit: Unit) -> Expr:
    """Width of what the head multiplies; a tied head is the word embedding again."""
    weights = (*unit.held, *view.setting.model.unit_weights("embedding"))
    rows = (w for w in weights if w.group in ("head", "embedding") and len(w.shape) == 2)  # noqa: PLR2004
    return next((w.shape[1] for w in rows), sym.h)


def _whole_weights(view: View, stage: Stage) -> Iterator[Event]:
    """Weights that no rank splits, although each rank sees only some tokens (sequence parallelism) or some heads."""
    elements = Add(*(unit.blocks * partial for unit in stage.units if (partial := _partial(view, unit)) != 0))
    if elements != 0:
        what = "norms and other whole weights" if view.setting.sequence_parallel else "whole weights applied to split heads"
        yield from view.once(
            "tensor",
            "all_reduce",
            _AXES,
            stage,
            "backward",
            elements * sym.b_g,
            f"sum the gradients of {what}",
            dtype=view.setting.precision.dtype("reduce"),
            order=(0,),
        )


def _partial(view: View, unit: Unit) -> Expr:
    return Add(*(_partial_elements(view, weight) for weight in unit.held if weight.trainable))


def _partial_elements(view: View, weight: Weight) -> Expr:
    if weight.group == "expert" and view.setting.experts_apart:
        return Integer(0)
    if view.is_split(weight):
        return view.whole_part(weight)
    return weight.count if weight.split_input or view.setting.sequence_parallel else Integer(0)
