"""Why one line of a bill costs what it costs: its formulas, its symbols, the numbers put in, and how it grows.

Everything here is read off the event: no formula is written a second time.
"""

import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args

from sympy import Expr, Symbol

from meshcost import symbols as sym
from meshcost.clusters import Cluster
from meshcost.collectives import ALGORITHMS
from meshcost.errors import MeshcostError
from meshcost.event import Event
from meshcost.formula import Number, Values, bind, pretty, substituted, value
from meshcost.job import Job
from meshcost.ledger import Ledger
from meshcost.report.bill import Bill, Line
from meshcost.report.growth import Growth, definitions, growths
from meshcost.strategies.profiles import PROFILES
from meshcost.timing import Timing, timing

#: What the payload of a call is, by operation: the convention of nccl-tests.
PAYLOAD = {
    "all_reduce": "the tensor that every rank has and gets the sum of",
    "all_gather": "the whole output, collected from all ranks",
    "reduce_scatter": "the whole input, before each rank keeps its part of the sum",
    "all_to_all": "the whole input of one rank, a part for each other rank",
    "broadcast": "the tensor that the root has",
    "reduce": "the tensor that the root gets the sum of",
    "send": "the message",
    "recv": "the message",
}


class Formula(NamedTuple):
    """One formula: what it says, with numbers in place of symbols, and its value."""

    name: str
    meaning: str
    formula: Expr
    substituted: str
    value: int
    unit: str


class Meaning(NamedTuple):
    """One symbol here: its value, and its definition where it follows from others."""

    symbol: Symbol
    value: Number
    definition: Expr | None


@dataclass(frozen=True)
class Explanation:
    """Everything about one event of a bill; with its ``job``, also which quantities may be doubled."""

    bill: Bill
    line: Line
    job: Job | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger that the event is of."""
        return self.bill.ledger

    @property
    def event(self) -> Event:
        """The event that is explained."""
        return self.line.event

    @property
    def moves(self) -> str:
        """Which way the bytes of this call go: ``received`` for a receive, else ``sent``."""
        return "received" if self.event.op == "recv" else "sent"

    @property
    def all_calls(self) -> Expr:
        """Bytes of all calls by the busiest rank, as a formula."""
        price = self.event.priced
        return price.received if self.moves == "received" else price.sent

    def formulas(self) -> tuple[Formula, ...]:
        """Payload, calls, one call on the wire, and all calls."""
        event, moves = self.event, self.moves
        found = [
            self._formula(
                "payload", f"bytes of one call: {PAYLOAD[event.op]}", event.payload, event.values, "B"
            ),
            self._formula("calls", "calls of one rank in one step", event.count, event.values, ""),
        ]
        one, values = self._one_call()
        meaning = f"bytes that the busiest rank has {moves} in one call ({event.priced.algorithm})"
        found.append(self._formula("one call", meaning, one, values, "B"))
        meaning = f"bytes that it has {moves} in all calls of one step"
        return (*found, self._formula(moves, meaning, self.all_calls, event.values, "B"))

    def _one_call(self) -> tuple[Expr, Values]:
        """The algorithm's closed form in S and n; where chunks differ, the formula that the price was made with."""
        event, price = self.event, self.event.priced
        received = self.moves == "received"
        algorithm = ALGORITHMS.get(price.algorithm)
        form = algorithm.forms.get(event.op) if algorithm is not None else None
        call = {sym.S: event.payload_bytes, sym.n: event.group_size}
        if form is not None:
            one = form.received if received else form.sent
            if value(one, call) == (price.received_bytes if received else price.sent_bytes):
                return one, call
        return self.all_calls / event.count, event.values

    @staticmethod
    def _formula(name: str, meaning: str, formula: Expr, values: Any, unit: str) -> Formula:
        return Formula(name, meaning, formula, substituted(formula, values), bind(formula, values), unit)

    def symbols(self) -> tuple[Meaning, ...]:
        """Every symbol of the formulas, and those by which others are defined."""
        event = self.event
        found = {x for y in (event.payload, event.count, self.all_calls) for x in y.free_symbols}
        known = definitions(event)
        for symbol, definition in known.items():
            if symbol in found:
                found |= definition.free_symbols
        named = sorted(found, key=lambda symbol: (str(symbol).lower(), str(symbol)))
        return tuple(Meaning(symbol, event.values[symbol], known.get(symbol)) for symbol in named)

    def growth(self) -> tuple[Growth, ...] | None:
        """How the bytes sent grow with each axis that has ranks, with the batch and with the sequence.

        None without a job: a bill does not say what may be doubled, and not every size.
        """
        if self.job is None:
            return None
        event = self.event
        return tuple(growths(event, self.all_calls, stages=self.ledger.mesh.stages, job=self.job))

    @property
    def timing(self) -> Timing | None:
        """What the seconds of one call are made of; None where the bill has no cluster that says how fast its links are."""
        return None if (speeds := self.bill.speeds) is None else timing(self.event, speeds)

    @property
    def source(self) -> Mapping[str, str]:
        """What the docstring of the strategy's profile says: ``Calls``, ``Sends``, ``Assumes``, ``Source``."""
        return _claims_of(self.event.strategy, str(self.ledger.about.get("framework", "textbook")))

    @property
    def algorithm_source(self) -> str:
        """Where the algorithm comes from."""
        found = ALGORITHMS.get(self.event.priced.algorithm)
        return found.source if found is not None else ""


_FIELD = re.compile(r"^([A-Z][a-z]+) {2,}(\S.*(?:\n +\S.*)*)", re.MULTILINE)


def claims(docstring: str, strategy: str = "", known: Collection[str] = ()) -> dict[str, str]:
    r"""Read the fields of a docstring (``Calls``, ``Sends``, ``Assumes``, ``Source``), each as one line.

    A line that begins with names of ``known`` strategies is of these, and left out for any other.

    >>> claims("Title.\n\nAssumes  much\n         more\nSource   A 2020\n")
    {'Assumes': 'much; more', 'Source': 'A 2020'}
    >>> claims("Title.\n\nSource   A 2020\n         ddp: B 2021\n         fsdp: C\n", "ddp", ("ddp", "fsdp"))
    {'Source': 'A 2020; B 2021'}
    """
    found = {}
    for name, text in _FIELD.findall(docstring):
        lines = (_said_of(line.strip().rstrip(";"), strategy, known) for line in text.splitlines())
        found[name] = "; ".join(filter(None, lines))
    return found


def _said_of(line: str, strategy: str, known: Collection[str]) -> str:
    """What a line says of a strategy: all of it, unless it names those that it is of."""
    head, colon, rest = line.partition(": ")
    named = head.split(", ")
    if not colon or not set(named) <= set(known):
        return line
    return rest if strategy in named else ""


def _claims_of(strategy: str, framework: str) -> dict[str, str]:
    for kind, writer in PROFILES.get(framework, {}).items():
        if strategy in _names(kind):
            return claims(sys.modules[writer.__module__].__doc__ or "", strategy, _names(kind))
    return {}


def _names(kind: Any) -> set[str]:
    """Names under which a strategy writes its events: its axis, or what it lets a person choose from."""
    chosen = kind.model_fields.get("strategy")
    own = getattr(kind, "axis", kind.__name__.lower())
    return {own, *get_args(chosen.annotation)} if chosen is not None else {own}


def find(ledger: Ledger, wanted: str, job: Job | None = None, cluster: Cluster | None = None) -> Explanation:
    """Explain one event: by its number, its name, or what no other has: the beginning of a name, or words of its reason.

    Raises MeshcostError with near matches if there is none, or several.
    """
    bill = Bill(ledger, cluster=cluster)
    lines = bill.lines
    exact = [line for line in lines if wanted in (str(line.number), line.name)]
    chosen = exact or [line for line in lines if line.name.startswith(wanted)]
    how = "begin so"
    if not chosen and not wanted.lstrip("-").isdigit():
        chosen = [line for line in lines if wanted.lower() in line.event.why.lower()]
        how = "are for something of that name"
    if len(chosen) == 1:
        return Explanation(bill, chosen[0], job)
    raise MeshcostError(_several(wanted, chosen, how) if chosen else _none(wanted, lines))


def _several(wanted: str, lines: list[Line], how: str) -> str:
    shown = ", ".join(f"{line.name} ({line.number})" for line in lines[:6])
    more = f" and {len(lines) - 6} more" if len(lines) > 6 else ""
    return f"event {wanted!r}: {len(lines)} events {how}: {shown}{more}."


def _none(wanted: str, lines: tuple[Line, ...]) -> str:
    if not lines:
        return f"event {wanted!r}: this job has no events: it communicates nothing."
    if wanted.lstrip("-").isdigit():
        return f"event {wanted!r}: there is none of that number. Choose 1 to {len(lines)}."
    near = get_close_matches(wanted, [line.name for line in lines], 3, 0.3)
    hint = f" Near: {', '.join(near)}." if near else ""
    return f"event {wanted!r}: there is none of that name.{hint} meshcost explain JOB lists all {len(lines)}."


def as_dict(explanation: Explanation) -> dict[str, Any]:
    """One explanation as JSON values; fractions are text, as ``1/15``."""
    event, line = explanation.event, explanation.line
    formulas = explanation.formulas()
    claimed = explanation.source
    return {
        "number": line.number,
        "event": line.name,
        **{name: getattr(event, name) for name in ("strategy", "op", "phase", "why", "dtype", "group_size")},
        "axes": list(event.axes),
        "stages": list(event.stages),
        "algorithm": event.priced.algorithm,
        "formulas": {
            x.name.replace(" ", "_"): {
                "meaning": x.meaning, "formula": pretty(x.formula), "substituted": x.substituted, "value": x.value,
            }
            for x in formulas
        },
        "symbols": {
            str(x.symbol): {
                "meaning": sym.meaning(x.symbol),
                "unit": sym.unit(x.symbol),
                "value": x.value if isinstance(x.value, int) else str(x.value),
                "definition": None if x.definition is None else pretty(x.definition),
            }
            for x in explanation.symbols()
        },
        "totals": {name: number for name, number in event.totals.as_dict().items() if name != "payload_bytes"},
        **({"seconds": _seconds(explanation)} if explanation.bill.timed else {}),
        "growth": None if (growth := explanation.growth()) is None else {
            x.quantity: {
                "symbol": str(x.symbol),
                "elasticity": None if x.elasticity is None else str(x.elasticity),
                "doubled": None if x.doubled is None else str(x.doubled),
                "why": x.why,
            }
            for x in growth
        },
        "source": claimed.get("Source", ""),
        "assumes": claimed.get("Assumes", ""),
        "algorithm_source": explanation.algorithm_source,
    }  # fmt: skip


def _seconds(explanation: Explanation) -> dict[str, Any]:
    """What the seconds are of, of all calls; and of one call its parts, where the links are known."""
    found: dict[str, Any] = {
        **explanation.bill.timed_on, "all_calls": explanation.bill.seconds(explanation.event),
    }  # fmt: skip
    if (one := explanation.timing) is not None:
        found |= {
            "one_call": one.seconds,
            "waits": [x._asdict() | {"seconds": x.seconds} for x in one.waits],
            "transfers": [x._asdict() | {"seconds": x.seconds} for x in one.transfers],
            "by_tree": one.by_tree,
        }
    return found
