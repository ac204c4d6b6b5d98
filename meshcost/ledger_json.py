"""Ledgers as JSON: everything the bill says, and enough besides to read the very same ledger back.

A file that is read is not trusted: formulas are parsed, not evaluated, every stated number is computed again, and prices
are those of the algorithm that is named. Seconds have to add up. What no number hangs on (``about``, why a call is made,
which data type of its width a buffer has) is covered by the ``digest`` of all the rest. It notices damage and what was
changed by hand; whoever computes it anew is not stopped: it is no signature.
"""

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from hashlib import sha256
from importlib import import_module
from math import fsum, isclose, prod
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sympy import Integer, Symbol

from meshcost import document
from meshcost.errors import FormulaError, LedgerError, MeshcostError, shown
from meshcost.event import CLUSTER, OPERATIONS, Event, Forms, Price, Site
from meshcost.formula import bind, parse, pretty
from meshcost.ledger import Ledger
from meshcost.ledger_records import EventRecord, LedgerRecord, OneCallRecord, ProgramRecord, SecondsRecord
from meshcost.listing import listed
from meshcost.mesh import EXPERT_AXES, LARGEST_WORLD, Mesh
from meshcost.program import Program
from meshcost.schedule import Schedule
from meshcost.symbols import ALPHABET, DEFINITIONS
from meshcost.torch_program import TorchProgram
from meshcost.torch_schedule import is_listed, refused
from meshcost.units import DTYPE_BYTES, item_bytes

FORMAT = 1
MOST_MICRO_BATCHES = 2**20
MOST_UNITS = 200_000


def to_dict(ledger: Ledger) -> dict[str, Any]:
    """Write a priced ledger as JSON values."""
    schedule = ledger.program.schedule
    numbered = {id(event): {"number": number, "event": name} for number, name, event in listed(ledger)}
    plain = {
        "meshcost": FORMAT,
        "about": dict(ledger.about),
        "world_size": ledger.mesh.world_size,
        "totals": _totals(ledger),
        "events": [_event(event) | numbered[id(event)] for event in ledger],
        "mesh": {
            "axes": dict(ledger.mesh.axes),
            "expert": dict(ledger.mesh.expert) if ledger.mesh.expert else None,
            "gpus_per_node": ledger.mesh.gpus_per_node,
        },
        "program": {
            "schedule": {
                name: getattr(schedule, name) for name in ("name", "ranks", "chunks", "micro_batches")
            },
            "units": [[list(run) for run in units] for units in ledger.program.units],
            **_around(ledger.program),
        },
        **({"seconds": dict(ledger.seconds)} if ledger.seconds else {}),
    }
    return plain | {"digest": digest(plain)}


def digest(data: Mapping[str, Any]) -> str:
    """SHA-256 over all values of a bill but the digest, as JSON without blanks.

    In the order in which they stand: that of the axes says which ranks are neighbours. Raises LedgerError for what is no
    JSON.

    >>> digest({"meshcost": 1}) == digest({"meshcost": 1, "digest": "any"}) != digest({"meshcost": 2})
    True
    """
    try:
        plain = {name: value for name, value in data.items() if name != "digest"}
        return sha256(json.dumps(plain, separators=(",", ":")).encode()).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise LedgerError(f"about: it holds what is no JSON: {error}.") from None


def _around(program: Program) -> dict[str, Any]:
    """Write what torch calls around the units; nothing under another profile."""
    if not isinstance(program, TorchProgram):
        return {}
    plain = TypeAdapter(TorchProgram).dump_python(program, mode="json")
    return {name: plain[name] for name in _AROUND}


_AROUND = ("sharding", "reductions", "reduces_every", "rebuilt_in", "updates", "votes")


def _totals(ledger: Ledger) -> dict[str, Any]:
    """Totals of the busiest rank, and the same split up; ``by_stage`` has one entry for each stage."""
    split: dict[str, Any] = {
        f"by_{key}": {name: sums.as_dict() for name, sums in ledger.group(key).items()}
        for key in ("strategy", "op", "phase", "axis", "stage")
    }
    busiest = {name: getattr(ledger, name) for name in ("busiest_stage", "busiest_rank")}
    return {**ledger.totals.as_dict(), **ledger.cluster, **busiest, **split}


def _event(event: Event) -> dict[str, Any]:
    price, sums = event.priced, event.totals.as_dict()
    forms = (event.payload, event.count, price.sent, price.received)
    symbols = set[Any]().union(*(form.free_symbols for form in forms))
    for symbol in symbols & DEFINITIONS.keys():
        symbols |= DEFINITIONS[symbol].free_symbols & event.values.keys()
    return {
        "strategy": event.strategy,
        "op": event.op,
        "axes": list(event.axes),
        "group_size": event.group_size,
        "stages": list(event.stages),
        "phase": event.phase,
        "why": event.why,
        "dtype": event.dtype,
        "count": event.calls,
        **{key: value for key, value in sums.items() if key != "calls"},
        "payload_bytes": event.payload_bytes,
        **event.cluster,
        "algorithm": price.algorithm,
        "formula": {
            "payload": pretty(event.payload),
            "count": pretty(event.count),
            "sent": pretty(price.sent),
            "received": pretty(price.received),
        },
        "values": {str(x): _number(event.values[x]) for x in sorted(symbols, key=str)},
        "one_call": {name: getattr(price, name) for name in OneCallRecord.model_fields},
        "runs": [list(run) for run in price.runs],
        "site": {
            "unit": event.site.unit,
            "order": list(event.site.order),
            "repeat": event.site.repeat,
            "micro_batches": event.site.micro_batches,
            **({"from_layer": event.site.from_layer} if event.site.from_layer else {}),
        },
        "item_bytes": event.item_bytes,
        "pairs": [list(pair) for pair in event.pairs],
        "shift": event.shift,
        "split": event.split,
    }


def _number(value: int | Fraction) -> int | str:
    return value if isinstance(value, int) else str(value)


def from_dict(data: Any) -> Ledger:
    """Read what ``to_dict`` wrote. Raises LedgerError, naming the path, for anything else."""
    try:
        record = LedgerRecord.model_validate(data)
    except ValidationError as error:
        raise LedgerError(document.sentences(error)) from None
    mesh = Mesh(record.mesh.axes, record.mesh.expert, record.mesh.gpus_per_node)
    strange = set(record.mesh.expert or ()) - set(EXPERT_AXES)
    if strange or mesh.world_size != record.world_size or mesh.world_size > LARGEST_WORLD:
        raise LedgerError("mesh: its axes do not make up the stated world.")
    if mesh.expert and prod(mesh.expert.values()) * mesh.stages != mesh.world_size:
        raise LedgerError("mesh.expert: its axes do not make up the ranks of a stage.")
    program = _read_program(record.program, mesh)
    events = tuple(_read_event(i, item, mesh) for i, item in enumerate(record.events))
    times = record.seconds and record.seconds.model_dump(mode="json")
    ledger = Ledger(events, mesh, program, record.about, times or {})
    places = {id(event): place for place, event in enumerate(ledger)}
    for number, name, event in listed(ledger):
        stated = record.events[places[id(event)]]
        if (stated.number, stated.event) != (number, name):
            raise LedgerError(f"events.{places[id(event)]}: it is listed as {number}, {name}.")
    if _totals(ledger) != record.totals:
        raise LedgerError("totals: they are not the sums of the events.")
    if record.seconds is not None:
        _check_seconds(ledger, record.seconds)
    if digest(data) != record.digest:
        raise LedgerError("digest: it does not fit the rest: something was changed after the bill was saved.")
    return ledger


def _check_seconds(ledger: Ledger, stated: SecondsRecord) -> None:
    """Raise LedgerError unless the times add up; how fast the links of that cluster are, the file does not say."""
    if len(stated.events) != len(ledger) or stated.slowest_stage >= ledger.mesh.stages:
        raise LedgerError("seconds: not one for each event, or of a stage that does not exist.")
    by_stage = [
        fsum(time for event, time in zip(ledger, stated.events, strict=True) if stage in event.stages)
        for stage in range(ledger.mesh.stages)
    ]
    sums = (by_stage[ledger.busiest_stage], by_stage[stated.slowest_stage], max(by_stage))
    figures = (stated.total, stated.slowest_total, stated.slowest_total)
    if not all(map(partial(isclose, rel_tol=1e-9, abs_tol=1e-12), sums, figures)):
        raise LedgerError("seconds: they are not the sums of those of the events.")


def saved(path: Path) -> Ledger | None:
    """The ledger in a file, or None where the file holds something else. Raises LedgerError if it holds a spoilt one."""
    try:
        data = document.read_json(path)
    except LedgerError:
        if _begins_as_bill(path):  # and is cut off, perhaps
            raise
        return None
    if not isinstance(data, dict) or not ("meshcost" in data or {"by", "rows"} <= data.keys()):
        return None
    return _from_data(data, path)


def _begins_as_bill(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return re.match(r'\s*\{\s*"meshcost"', file.read(100)) is not None
    except (OSError, ValueError):
        return False


def from_file(path: Path) -> Ledger:
    """Read a file of JSON that holds a ledger. Raises LedgerError, naming the file, for anything else."""
    return _from_data(document.read_json(path), path)


def _from_data(data: Any, path: Path) -> Ledger:
    try:
        if part := _part_of_bill(data):
            raise LedgerError(part)
        return from_dict(data)
    except LedgerError as error:
        raise error.located(str(path)) from None


def _part_of_bill(data: Any) -> str:
    """Say what a file holds that is written with an option that leaves something out; nothing of a whole bill."""
    if not isinstance(data, dict):
        return ""
    if {"by", "rows"} <= data.keys():
        return "it holds sums, not the bill. Save the bill: analyze --format json without --by."
    if "meshcost" in data and "stage" in data and "digest" not in data:
        which = "one rank" if "rank" in data else "one stage"
        return f"it holds the part of {which}. Save the whole bill: analyze --format json without --stage and --rank."
    return ""


def _read_program(record: ProgramRecord, mesh: Mesh) -> Program:
    schedule = Schedule(**record.schedule.model_dump())
    chunks = {"vee": schedule.chunks == 2, "mirror": schedule.chunks == 1 and schedule.micro_batches % 2 == 0}
    if schedule.ranks != mesh.stages or not chunks.get(schedule.placement, True):
        raise LedgerError("program.schedule: it does not fit the stages of the mesh.")
    if schedule.micro_batches > MOST_MICRO_BATCHES or len(record.units) != schedule.virtual_stages:
        raise LedgerError("program: too many micro-batches, or not one list of units for each virtual stage.")
    if sum(number for units in record.units for _, number in units) > MOST_UNITS:
        raise LedgerError(f"program.units: more than {MOST_UNITS} units.")
    if not record.model_fields_set & {"sharding", "reductions"}:
        return Program(schedule, record.units)
    return _read_torch_program(schedule, record)


def _read_torch_program(schedule: Schedule, record: ProgramRecord) -> Program:
    """Read what torch calls around the units; every place has to be one of its stage."""
    groups = record.sharding.stages if record.sharding else ()
    spans = [[(x.enter, x.leave) for x in stage] for stage in groups]
    spans = spans or [[(x.ready, x.ready) for x in stage] for stage in record.reductions]
    lists = [x for x in (spans, record.updates) if x]
    if any(len(x) != len(record.units) or sum(map(len, x)) > MOST_UNITS for x in lists):
        raise LedgerError("program: not one list of groups or buckets for each virtual stage, or too many.")
    if record.rebuilt_in and len(record.rebuilt_in) != len(record.units):
        raise LedgerError("program.rebuilt_in: not one micro-batch for each virtual stage.")
    for stage, runs in zip(spans, record.units, strict=False):
        places = sum(number for _, number in runs)
        if any(not 0 <= enter <= leave < places for enter, leave in stage):
            raise LedgerError("program: a group or bucket lies outside its stage.")
    if is_listed(schedule) and (why := refused(schedule)) is not None:
        raise LedgerError(f"program.schedule: {why}.")
    return TorchProgram(schedule, **{name: getattr(record, name) for name in ("units", *_AROUND)})


def _read_event(index: int, record: EventRecord, mesh: Mesh) -> Event:
    try:
        event = _build_event(record)
        _fits(event, mesh)
        closed = (bind(event.priced.sent, event.values), bind(event.priced.received, event.values))
        written = _event(event)
        _priced_as_stated(event, mesh)
    except (MeshcostError, ValueError, ZeroDivisionError, OverflowError) as error:
        raise LedgerError(f"events.{index}: {error}") from None
    for name in _NUMBERS:
        if getattr(record, name) != written[name]:
            raise LedgerError(
                f"events.{index}.{name}: {shown(getattr(record, name))} is stated, but its formulas give "
                f"{shown(written[name])}."
            )
    if closed != (record.sent_bytes, record.received_bytes):
        raise LedgerError(
            f"events.{index}.formula: sent and received give {shown(closed[0])} and {shown(closed[1])} B."
        )
    return event


def _priced_as_stated(event: Event, mesh: Mesh) -> None:
    """Raise LedgerError unless the algorithm that is named costs what is stated. Prices live above, loaded by name."""
    stated = event.priced
    pricer = import_module("meshcost.price").Pricer(mesh, {event.wire_op: stated.algorithm})
    found = pricer.price(event, Integer(event.group_size)).priced
    for name in (*OneCallRecord.model_fields, "runs"):
        if getattr(stated, name) != getattr(found, name):
            raise LedgerError(f"one_call, runs: {stated.algorithm} has other {name} here.")


_NUMBERS = (
    "count", "payload_bytes", "sent_bytes", "received_bytes", "intra_node_bytes", "inter_node_bytes", *CLUSTER,
)  # fmt: skip


def _fits(event: Event, mesh: Mesh) -> None:
    """Raise LedgerError unless there are such groups, stages and positions on this mesh."""
    axes = set(mesh.axes) if not set(event.axes) & set(EXPERT_AXES) else {*(mesh.expert or ()), "pipeline"}
    pairs, stages = [stage for pair in event.pairs for stage in pair], set(event.stages)
    whole = mesh.size(*event.axes)
    one_size = {len(pair) for pair in event.pairs} or {event.split or whole}
    places = [run[0] for run in event.priced.runs]
    conditions = {
        "op": event.op in OPERATIONS,
        "dtype, item_bytes": event.dtype in DTYPE_BYTES and event.item_bytes == item_bytes(event.dtype),
        "axes": set(event.axes) <= axes and len(set(event.axes)) == len(event.axes),
        "group_size": one_size == {event.group_size} and event.group_size > 1,
        "stages": stages and len(stages) == len(event.stages) and max(stages) < mesh.stages,
        "pairs": not pairs
        or (
            event.axes == ("pipeline",)
            and len(set(pairs)) == len(pairs)
            and max(pairs) < mesh.stages
            and stages <= set(pairs)
        ),
        "shift": 0 <= event.shift < mesh.world_size,
        "split": not event.split or (whole % event.split == 0 and not pairs),
        "runs": not places
        or (places[0] == 0 and places == sorted(set(places)) and places[-1] < event.group_size),
    }
    wrong = [name for name, holds in conditions.items() if not holds]
    if wrong:
        raise LedgerError(f"{', '.join(wrong)}: not possible on this mesh.")


def _build_event(record: EventRecord) -> Event:
    price = Price(
        algorithm=record.algorithm,
        forms=Forms(partial(tuple, (parse(record.formula.sent), parse(record.formula.received)))),
        runs=record.runs,
        **record.one_call.model_dump(),
    )
    return Event(
        **{name: getattr(record, name) for name in _PLAIN},
        payload=parse(record.formula.payload),
        count=parse(record.formula.count),
        values=_read_values(record.values),
        site=Site(**record.site.model_dump()),
        price=price,
    )


_PLAIN = (
    "strategy", "op", "axes", "group_size", "phase", "why", "dtype", "stages", "item_bytes", "pairs", "shift",
    "split",
)  # fmt: skip


def _read_values(values: dict[str, int | str]) -> dict[Symbol, Any]:
    unknown = sorted(set(values) - set(ALPHABET))
    if unknown:
        raise FormulaError(f"values: {shown(unknown[0])} is not a symbol of the alphabet.")
    return {ALPHABET[name]: _read_number(name, value) for name, value in values.items()}


#: Whole numbers and fractions as ``_number`` writes them: for 1e99 as for 1e999999999 Python would set out to write it.
_FRACTION = re.compile(r"-?[0-9]{1,40}(/0*[1-9][0-9]{0,39})?")


def _read_number(name: str, value: int | str) -> int | Fraction:
    if isinstance(value, int):
        return value
    if not _FRACTION.fullmatch(value):
        raise FormulaError(
            f"values.{name}: {shown(value)} is neither a whole number nor a fraction, as '3/4'."
        )
    return Fraction(value)
