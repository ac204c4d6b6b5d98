"""How a cost grows: with each axis, with the batch, with the sequence; by how much, and whether it may."""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple

from sympy import Expr, Symbol

from meshcost import symbols as sym
from meshcost.errors import FormulaError, MeshcostError
from meshcost.event import Event
from meshcost.formula import Values, elasticity, value
from meshcost.job import Job

_QUANTITIES: Mapping[Symbol, str] = MappingProxyType(
    {
        sym.t: "tensor",
        sym.c: "context",
        sym.d: "data",
        sym.r: "replicate",
        sym.p: "pipeline",
        sym.e: "expert",
        sym.t_e: "expert_tensor",
        sym.B: "global batch",
        sym.b: "micro-batch",
        sym.s: "sequence",
    }
)
_ALWAYS = (sym.B, sym.b, sym.s)
_DEALT_OUT = "depends on how the blocks are dealt out to the stages"
_IN_STEPS = "grows in steps"


class Growth(NamedTuple):
    """How the bytes sent grow with one quantity.

    ``elasticity`` is percent per percent, at this point; ``doubled`` the factor when the quantity alone doubles. Each is
    None where there is none, and ``why`` says why.
    """

    quantity: str
    symbol: Symbol
    elasticity: Fraction | None
    doubled: Fraction | None
    why: str = ""


def definitions(event: Event) -> dict[Symbol, Expr]:
    """Definitions that hold for an event: their symbols are known here, and the value is the one defined."""
    found = {}
    for symbol, definition in sym.DEFINITIONS.items():
        known = {symbol, *definition.free_symbols} <= set(event.values)
        if known and value(definition, event.values) == event.values[symbol]:
            found[symbol] = definition
    return found


def growths(event: Event, whole: Expr, *, stages: int, job: Job) -> Iterator[Growth]:
    """Yield how ``whole`` (bytes of all calls) grows; the job says which quantities may be doubled."""
    known = definitions(event)
    whole = whole.xreplace(known)
    for symbol, quantity in _QUANTITIES.items():
        size = event.values.get(symbol)
        if size is None or (size == 1 and symbol not in _ALWAYS):
            continue
        if symbol == sym.p and _stages_differ(event, whole, stages):
            yield Growth(quantity, symbol, None, None, _DEALT_OUT)
            continue
        slope = _slope(whole, symbol, event.values)
        twice = {**event.values, symbol: 2 * size}
        why = _obstacle(job, symbol) or _fraction(known, twice)
        if why:
            yield Growth(quantity, symbol, slope, None, why)
        else:
            before, after = value(whole, event.values), value(whole, twice)
            doubled = Fraction(after) / Fraction(before) if before else None
            yield Growth(quantity, symbol, slope, doubled, "" if slope is not None else _IN_STEPS)


def _stages_differ(event: Event, whole: Expr, stages: int) -> bool:
    """Whether the formula holds the blocks of these stages as a number of its own, which p does not tell."""
    outside = event.site.unit in ("embedding", "head", "boundary") or event.strategy == "scalars"
    return stages > 1 and not outside and not whole.has(sym.p)


def _slope(whole: Expr, symbol: Symbol, values: Values) -> Fraction | None:
    try:
        return elasticity(whole, symbol, values)
    except (FormulaError, AttributeError, ZeroDivisionError):
        return None  # a number of rounds, or nothing that could grow


def _fraction(known: Mapping[Symbol, Expr], values: Values) -> str:
    """Say what would be no whole number any more."""
    broken = [symbol for symbol, x in known.items() if Fraction(value(x, values)).denominator != 1]
    return f"{sym.meaning(broken[0]).partition(':')[0]} would be no whole number" if broken else ""


def _obstacle(job: Job, symbol: Symbol) -> str:
    """Say why a job cannot have twice as much of something; empty if it can."""
    try:
        job.model_copy(update=_DOUBLED[symbol](job))
    except MeshcostError as error:
        return error.problems[0]
    return ""


def _axis(axis: str, **more: Any) -> Callable[[Job], dict[str, Any]]:
    def change(job: Job) -> dict[str, Any]:
        options = getattr(job.parallel, axis)
        factors = {"size": 2, **more}
        update = {name: factor * (getattr(options, name) or 1) for name, factor in factors.items() if factor}
        return {"parallel": job.parallel.model_copy(update={axis: options.model_copy(update=update)})}

    return change


def _batch(name: str) -> Callable[[Job], dict[str, Any]]:
    return lambda job: {"batch": job.batch.model_copy(update={name: 2 * getattr(job.batch, name)})}


#: What to change in a job so that a symbol has twice its value.
_DOUBLED: Mapping[Symbol, Callable[[Job], dict[str, Any]]] = MappingProxyType(
    {
        sym.t: _axis("tensor"),
        sym.c: _axis("context"),
        sym.d: _axis("data"),
        sym.r: _axis("data", replicate=2),
        sym.p: _axis("pipeline"),
        sym.e: _axis("expert"),
        sym.t_e: _axis("expert", size=0, expert_tensor=2),
        sym.B: _batch("global_batch"),
        sym.b: _batch("micro_batch"),
        sym.s: _batch("sequence"),
    }
)
