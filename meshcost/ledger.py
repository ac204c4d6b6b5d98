"""The ledger: what one training step calls, how often, on how much, by whom and why.

An **Event** is one kind of call: its operation, its group, a symbolic payload and a symbolic count. A **Ledger** is all
events of a step with the mesh they run on. ``Ledger.calls(rank)`` unrolls it into the exact calls that a rank makes.
A ledger knows nothing of how bytes move: that is a **Price**, which an algorithm of the collectives shelf puts on it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from sympy import Expr, Symbol

from meshcost.errors import LedgerError
from meshcost.formula import bind, pretty
from meshcost.mesh import Mesh
from meshcost.program import Program

if TYPE_CHECKING:
    import pandas as pd

Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send", "recv")


@dataclass(frozen=True, slots=True)
class Site:
    """Where in a step an event happens.

    ``unit`` is ``embedding``, a kind of block, ``head``, ``boundary`` (between two stages), ``micro_batch`` (after its
    last backward) or ``step`` (once, after the last micro-batch). ``order`` sorts the events of one unit within one phase. ``repeat`` calls follow each other.
    ``micro_batches`` says whether it happens for each of them, or only in the first or last pass of its unit.
    """

    unit: str
    order: tuple[int, ...] = ()
    repeat: int = 1
    micro_batches: Literal["every", "first", "last"] = "every"


@dataclass(frozen=True, slots=True)
class Price:
    """What an event costs under one algorithm: bytes on the wire for one call, by the busiest rank.

    ``sent`` and ``received`` are the closed forms for all calls of the event. ``intra_node`` and ``inter_node`` split the
    sent bytes of the rank that sends the most between nodes. ``by_position`` holds (sent, received) for each position in
    the group, where they differ; it is empty where all ranks of a group send alike.
    """

    algorithm: str
    sent: Expr
    received: Expr
    sent_bytes: int
    received_bytes: int
    intra_node_bytes: int
    inter_node_bytes: int
    by_position: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Event:
    """One kind of call.

    ``payload`` is the whole logical buffer of one call in bytes, ``count`` the calls of one rank in one step; ``values``
    gives every symbol its number. ``axes`` name the group, ``stages`` the pipeline stages whose ranks make the call.
    ``pairs`` restricts a group along the pipeline axis to some stages; ``shift`` is the distance to the peer of a
    ``send`` within its group.
    """

    strategy: str
    op: str
    axes: tuple[str, ...]
    group_size: int
    phase: Phase
    why: str
    dtype: str
    payload: Expr
    count: Expr
    values: Mapping[Symbol, int] = field(repr=False, compare=False)
    stages: tuple[int, ...] = (0,)
    site: Site = Site("step")
    item_bytes: int = 1
    pairs: tuple[tuple[int, ...], ...] = ()
    shift: int = 0
    price: Price | None = None

    @cached_property
    def payload_bytes(self) -> int:
        """Bytes of one call."""
        return bind(self.payload, self.values)

    @cached_property
    def calls(self) -> int:
        """Calls of one rank in one step."""
        return bind(self.count, self.values)

    def chunk(self, position: int) -> int:
        """Bytes of the part of the payload that belongs to one position of the group: balanced, whole elements."""
        elements, size = self.payload_bytes // self.item_bytes, self.group_size
        return (elements // size + (position < elements % size)) * self.item_bytes

    @property
    def priced(self) -> Price:
        """The price; raises LedgerError if no algorithm has put one on this event."""
        if self.price is None:
            raise LedgerError(f"{self.strategy} {self.op} has no price: use meshcost.analyze, which adds one.")
        return self.price

    @cached_property
    def totals(self) -> "Totals":
        """All calls of this event by its busiest rank."""
        price, calls = self.price, self.calls
        if price is None:
            return Totals(calls, calls * self.payload_bytes)
        return Totals(
            calls,
            calls * self.payload_bytes,
            calls * price.sent_bytes,
            calls * price.received_bytes,
            calls * price.intra_node_bytes,
            calls * price.inter_node_bytes,
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over events: calls, and bytes of payload, sent, received, sent inside a node and sent between nodes.

    >>> Totals(1, 10) + Totals(2, 5)
    Totals(calls=3, payload_bytes=15, sent_bytes=0, received_bytes=0, intra_node_bytes=0, inter_node_bytes=0)
    """

    calls: int = 0
    payload_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    intra_node_bytes: int = 0
    inter_node_bytes: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        """Add field by field."""
        return Totals(*(getattr(self, name) + getattr(other, name) for name in Totals.__slots__))

    def as_dict(self) -> dict[str, int]:
        """Name every sum, as JSON has it."""
        return {name: getattr(self, name) for name in Totals.__slots__}


@dataclass(frozen=True, slots=True)
class Call:
    """One call that one rank makes: what it puts in, what it gets out, with whom."""

    op: str
    ranks: tuple[int, ...]
    in_bytes: int
    out_bytes: int
    dtype: str
    phase: Phase
    strategy: str
    why: str
    unit: str
    micro_batch: int | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A kind of call that two ledgers make a different number of times."""

    strategy: str
    op: str
    axes: tuple[str, ...]
    phase: Phase
    dtype: str
    payload_bytes: int
    calls: int
    other_calls: int


_KEYS: Mapping[str, Callable[[Event], str]] = {
    "strategy": lambda event: event.strategy,
    "op": lambda event: event.op,
    "phase": lambda event: event.phase,
    "axis": lambda event: " x ".join(event.axes),
    "why": lambda event: event.why,
    "dtype": lambda event: event.dtype,
    "algorithm": lambda event: event.priced.algorithm,
}


@dataclass(frozen=True)
class Ledger:
    """All events of one step, on their mesh.

    ``about`` holds what a reader wants to see beside the numbers (model, framework, batch); it takes no part in them.
    """

    events: tuple[Event, ...]
    mesh: Mesh
    program: Program
    about: Mapping[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events."""
        return iter(self.events)

    def __len__(self) -> int:
        """Count the events."""
        return len(self.events)

    def __add__(self, other: "Ledger") -> "Ledger":
        """Put the events of two ledgers on the same mesh together. Raises LedgerError for two meshes."""
        if (self.mesh, self.program) != (other.mesh, other.program):
            raise LedgerError("ledgers of two different meshes cannot be added: analyze one job.")
        return replace(self, events=self.events + other.events)

    def filter(self, keep: Callable[[Event], bool] | None = None, **fields: Any) -> "Ledger":
        """Keep the events for which ``keep`` is true and whose named fields have the given values.

        ``ledger.filter(op="all_gather", phase="forward")``. Raises LedgerError for a field that events do not have.
        """
        for name in fields:
            if name not in Event.__dataclass_fields__:
                raise LedgerError(f"events have no field {name!r}: choose from {', '.join(Event.__dataclass_fields__)}.")
        chosen = (
            event
            for event in self.events
            if all(getattr(event, name) == value for name, value in fields.items()) and (keep is None or keep(event))
        )
        return replace(self, events=tuple(chosen))

    def at_stage(self, stage: int) -> "Ledger":
        """Keep what the ranks of one pipeline stage call. Raises LedgerError for a stage that does not exist."""
        if not 0 <= stage < self.mesh.stages:
            raise LedgerError(f"stage {stage} does not exist: choose 0 to {self.mesh.stages - 1}.")
        return replace(self, events=tuple(event for event in self.events if stage in event.stages))

    @cached_property
    def by_stage(self) -> tuple[Totals, ...]:
        """Totals of a rank of each stage."""
        sums = [Totals()] * self.mesh.stages
        for event in self.events:
            for stage in event.stages:
                sums[stage] += event.totals
        return tuple(sums)

    @property
    def busiest_stage(self) -> int:
        """The stage whose ranks send the most bytes (then: the largest payload, the lowest number)."""
        return max(
            range(self.mesh.stages),
            key=lambda i: (self.by_stage[i].sent_bytes, self.by_stage[i].payload_bytes, -i),
        )

    @property
    def totals(self) -> Totals:
        """Totals of the busiest rank."""
        return self.by_stage[self.busiest_stage]

    def group(self, by: str, *, stage: int | None = None) -> dict[str, Totals]:
        """Add up by ``strategy``, ``op``, ``phase``, ``axis``, ``why``, ``dtype``, ``algorithm`` or ``stage``.

        The sums are those of one rank of ``stage``; without it, of the busiest one. Raises LedgerError for another key.
        """
        if by == "stage":
            return {str(i): sums for i, sums in enumerate(self.by_stage)}
        if by not in _KEYS:
            raise LedgerError(f"cannot group by {by!r}: choose from {', '.join((*_KEYS, 'stage'))}.")
        sums: dict[str, Totals] = {}
        for event in self.at_stage(self.busiest_stage if stage is None else stage):
            key = _KEYS[by](event)
            sums[key] = sums.get(key, Totals()) + event.totals
        return sums

    def rank_totals(self, rank: int) -> Totals:
        """Totals of one rank, exact also where an algorithm makes ranks of one group send unequal amounts."""
        sums = Totals()
        for event in self.at_stage(self.mesh.stage(rank)):
            price = event.price
            if price is None or not price.by_position:
                sums += event.totals
                continue
            sent, received = price.by_position[self.group_of(event, rank).index(rank)]
            calls = event.calls
            sums += Totals(calls, calls * event.payload_bytes, calls * sent, calls * received)
        return sums

    def group_of(self, event: Event, rank: int) -> tuple[int, ...]:
        """Ranks of the group in which ``rank`` makes this call."""
        members = self.mesh.group(rank, event.axes)
        if not event.pairs:
            return members
        stage = self.mesh.stage(rank)
        together = next(pair for pair in event.pairs if stage in pair)
        return tuple(member for member in members if self.mesh.stage(member) in together)

    def calls(self, rank: int) -> Iterator[Call]:
        """Unroll the ledger into the calls that one rank makes, in order. Raises LedgerError for an unknown rank."""
        self.mesh.check(rank)
        yield from _Unroller(self, rank).calls()

    def compare(self, other: "Ledger") -> tuple[Difference, ...]:
        """List the kinds of call that the two ledgers make a different number of times; empty if they agree."""
        mine, theirs = _census(self), _census(other)
        return tuple(
            Difference(*key, calls=mine.get(key, 0), other_calls=theirs.get(key, 0))
            for key in {**mine, **theirs}
            if mine.get(key, 0) != theirs.get(key, 0)
        )

    def to_dict(self) -> dict[str, Any]:
        """The whole ledger as JSON values; ``from_dict`` reads it back to an equal ledger."""
        return import_module("meshcost.ledger_json").to_dict(self)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: Any) -> "Ledger":
        """Read what ``to_dict`` wrote. Raises LedgerError for anything else."""
        return import_module("meshcost.ledger_json").from_dict(data)  # type: ignore[no-any-return]

    def to_pandas(self) -> "pd.DataFrame":
        """One row for each event. Raises LedgerError with the command to type if pandas is not installed."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise LedgerError("to_pandas needs pandas: pip install 'meshcost[pandas]'.") from None
        return pandas.DataFrame([_row(event) for event in self.events])

    def __rich__(self) -> Any:
        """Show the bill in a terminal. The picture lives above the ledger and is loaded by name, only when asked for."""
        return import_module("meshcost.report.terminal").bill(self)

    def _repr_html_(self) -> str:
        return str(import_module("meshcost.report.html").bill(self))


def _census(ledger: Ledger) -> dict[tuple[Any, ...], int]:
    counts: dict[tuple[Any, ...], int] = {}
    for event in ledger:
        key = (event.strategy, event.op, event.axes, event.phase, event.dtype, event.payload_bytes)
        counts[key] = counts.get(key, 0) + event.calls * len(event.stages)
    return counts


def _row(event: Event) -> dict[str, Any]:
    row: dict[str, Any] = {
        "strategy": event.strategy,
        "op": event.op,
        "axes": " x ".join(event.axes),
        "group_size": event.group_size,
        "stages": event.stages,
        "phase": event.phase,
        "why": event.why,
        "dtype": event.dtype,
        "count": event.calls,
        "payload_bytes": event.payload_bytes,
    }
    sums = event.totals.as_dict()
    row |= {name: sums[name] for name in ("sent_bytes", "received_bytes", "intra_node_bytes", "inter_node_bytes")}
    return row | {"payload": pretty(event.payload), "calls": pretty(event.count)}


class _Unroller:
    """Walks through the program of one rank and emits the calls of the events it passes."""

    def __init__(self, ledger: Ledger, rank: int) -> None:
        self.ledger, self.rank = ledger, rank
        self.stage = ledger.mesh.stage(rank)
        self.sites: dict[tuple[str, str], list[Event]] = {}
        for event in ledger.at_stage(self.stage):
            self.sites.setdefault((event.site.unit, event.phase), []).append(event)
        for events in self.sites.values():
            events.sort(key=lambda event: event.site.order)

    def calls(self) -> Iterator[Call]:
        for part in self.ledger.program.walk(self.stage):
            for event in self.sites.get((part.unit, part.phase), ()):
                if part.allows(event.op, event.site.micro_batches, event.shift):
                    call = self._call(event, part.label, part.micro_batch, part.peer_stage)
                    yield from (call for _ in range(event.site.repeat))
        for phase in PHASES:
            for event in self.sites.get(("step", phase), ()):
                yield self._call(event, "step", None, None)

    def _call(self, event: Event, unit: str, micro_batch: int | None, peer_stage: int | None) -> Call:
        group = self.ledger.group_of(event, self.rank)
        position = group.index(self.rank)
        into, out = event.payload_bytes, event.payload_bytes
        ranks = group
        if event.op == "all_gather":
            into = event.chunk(position)
        elif event.op == "reduce_scatter":
            out = event.chunk(position)
        elif event.op in ("send", "recv"):
            shift = event.shift if event.op == "send" else -event.shift
            peer = group[(position + shift) % len(group)] if peer_stage is None else group[peer_stage]
            ranks = (self.rank, peer) if event.op == "send" else (peer, self.rank)
            into, out = (into, 0) if event.op == "send" else (0, out)
        return Call(
            event.op, ranks, into, out, event.dtype, event.phase, event.strategy, event.why, unit, micro_batch
        )
