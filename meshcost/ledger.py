"""The ledger: what one training step calls, how often, on how much, by whom and why.

A **Ledger** is all events of a step with the mesh they run on. ``Ledger.calls(rank)`` unrolls it into the exact calls
that a rank makes. A ledger knows nothing of how bytes move: the prices of its events say that.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshcost.difference import Difference, Kind, Tally, differences, tally
from meshcost.errors import LedgerError, not_known
from meshcost.event import CLUSTER, OPERATIONS, PHASES, Event, Phase, Price, Run, Site, Totals, by_link
from meshcost.mesh import Group, Mesh
from meshcost.program import Program
from meshcost.unroll import Call, Unroller, group_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "OPERATIONS",
    "PHASES",
    "Call",
    "Difference",
    "Event",
    "Ledger",
    "Phase",
    "Price",
    "Run",
    "Site",
    "Totals",
]


#: By what events can be told apart.
KEYS: Mapping[str, Callable[[Event], str]] = {
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

    ``about`` holds what a reader wants to see beside the numbers (model, framework, batch); it is free text and takes no
    part in them. ``seconds`` holds the times that a saved bill states, for the cluster that it names.
    """

    events: tuple[Event, ...]
    mesh: Mesh
    program: Program
    about: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, Any] = field(default_factory=dict, compare=False)

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
        return self._with(self.events + other.events)

    def _with(self, events: Iterable[Event]) -> "Ledger":
        """The ledger of other events: times that were stated for these are not theirs."""
        return replace(self, events=tuple(events), seconds={})

    def __repr__(self) -> str:
        """Say in one line what it is of; ``rich.print`` shows all of it."""
        name, framework = self.about.get("model") or "a model", self.about.get("framework", "textbook")
        sums = self.totals
        return (
            f"<Ledger of {name}, {framework}, {self.mesh.world_size:,} ranks: {len(self)} events; "
            f"the busiest rank sends {sums.sent_bytes:,} B in {sums.calls:,} calls>"
        )

    def filter(self, keep: Callable[[Event], bool] | None = None, **fields: Any) -> "Ledger":
        """Keep the events for which ``keep`` is true and whose named fields have the given values.

        ``ledger.filter(op="all_gather", phase="forward")``. Raises LedgerError for a field that events do not have,
        and for an operation or a phase that does not exist.
        """
        for name in fields:
            if name == "stage":
                raise LedgerError(
                    "an event is of several stages: at_stage(0) keeps what the ranks of one call."
                )
            if name not in Event.__dataclass_fields__:
                raise LedgerError(f"events have no such field: {not_known(name, Event.__dataclass_fields__)}")
        for name, legal in (("op", OPERATIONS), ("phase", PHASES)):
            if name in fields and fields[name] not in legal:
                raise LedgerError(f"{name}={fields[name]!r} is not known: choose from {', '.join(legal)}.")
        chosen = (
            event
            for event in self.events
            if all(getattr(event, name) == value for name, value in fields.items())
            and (keep is None or keep(event))
        )
        return self._with(chosen)

    def at_stage(self, stage: int) -> "Ledger":
        """Keep what the ranks of one pipeline stage call. Raises LedgerError for a stage that does not exist."""
        self.mesh.check_stage(stage)
        return self._with(event for event in self.events if stage in event.stages)

    @cached_property
    def busiest_ranks(self) -> tuple[int, ...]:
        """Of each stage the rank that sends the most bytes (then: the most between nodes, the lowest number)."""
        found: tuple[int, ...] = import_module("meshcost.busiest").busiest_ranks(self)
        return found

    @cached_property
    def by_stage(self) -> tuple[Totals, ...]:
        """Totals of the busiest rank of each stage."""
        stages = range(self.mesh.stages)
        return tuple(sum((paid for _, paid in self._paid_in(stage)), Totals()) for stage in stages)

    @property
    def busiest_stage(self) -> int:
        """The stage whose busiest rank sends the most bytes (then: the largest payload, the lowest number)."""
        by_stage = self.by_stage
        return max(
            range(self.mesh.stages), key=lambda i: (by_stage[i].sent_bytes, by_stage[i].payload_bytes, -i)
        )

    @property
    def busiest_rank(self) -> int:
        """The rank whose ``totals`` are those of the ledger."""
        return self.busiest_ranks[self.busiest_stage]

    @property
    def totals(self) -> Totals:
        """Totals of the busiest rank."""
        return self.by_stage[self.busiest_stage]

    @property
    def cluster_sent_bytes(self) -> int:
        """Bytes that all ranks together send in a step."""
        return sum(event.cluster_sent_bytes for event in self)

    @property
    def cluster_inter_node_bytes(self) -> int:
        """Those of them that go from one node to another."""
        return sum(event.cluster_inter_node_bytes for event in self)

    @property
    def cluster(self) -> dict[str, int]:
        """Both sums over all ranks, as JSON has them."""
        return {name: getattr(self, name) for name in CLUSTER}

    def group(self, by: str, *, stage: int | None = None) -> dict[str, Totals]:
        """Add up by ``strategy``, ``op``, ``phase``, ``axis``, ``why``, ``dtype``, ``algorithm``, ``link`` or ``stage``.

        The sums are those of the busiest rank of ``stage``; without it, of all. Raises LedgerError for another key.
        """
        if by == "stage":
            return {str(i): sums for i, sums in enumerate(self.by_stage)}
        if by not in (*KEYS, "link"):
            raise LedgerError(f"cannot group by {by!r}: choose from {', '.join((*KEYS, 'link', 'stage'))}.")
        paid = self._paid_in(self.busiest_stage if stage is None else stage)
        if by == "link":
            return by_link(totals for _, totals in paid)
        sums: dict[str, Totals] = {}
        for event, totals in paid:
            key = KEYS[by](event)
            sums[key] = sums.get(key, Totals()) + totals
        return sums

    def _paid_in(self, stage: int) -> Iterator[tuple[Event, Totals]]:
        """What the ranks of a stage call, each event with what the busiest of them pays for it."""
        self.mesh.check_stage(stage)
        rank = self.busiest_ranks[stage]
        return ((event, self.paid(event, rank)) for event in self if stage in event.stages)

    def rank_totals(self, rank: int) -> Totals:
        """Totals of one rank, exact also where ranks of one group send unequal amounts, or to other nodes than others."""
        stage = self.mesh.stage(rank)
        return sum((self.paid(event, rank) for event in self if stage in event.stages), Totals())

    def paid(self, event: Event, rank: int) -> Totals:
        """All calls of one event by one rank of its stages. Prices live above the ledger and are loaded by name."""
        if event.all_pay_alike:
            return event.totals
        key = (id(event), rank)
        if key not in self._paid:
            self._paid[key] = event, import_module("meshcost.price").totals_of(event, self.mesh, rank)
        return self._paid[key][1]

    @cached_property
    def _paid(self) -> dict[tuple[int, int], tuple[Event, Totals]]:
        """What was asked for already; each event with it, so that its number stays its own."""
        return {}

    def group_of(self, event: Event, rank: int) -> Group:
        """Ranks of the group in which ``rank`` makes this call."""
        return group_of(event, self.mesh, rank)

    def calls(self, rank: int) -> Iterator[Call]:
        """Unroll the ledger into the calls that one rank makes, in order. Raises LedgerError for an unknown rank."""
        self.mesh.check(rank)
        yield from Unroller(self.events, self.mesh, self.program, rank).calls()

    def kinds(self, stage: int | None = None) -> dict[Kind, Tally]:
        """Count the calls of the busiest rank of ``stage`` by operation, group and phase; without it, of each stage."""
        stages = range(self.mesh.stages) if stage is None else (stage,)
        return tally(pair for each in stages for pair in self._paid_in(each))

    def compare(self, other: "Ledger", *, stage: int | None = None) -> tuple[Difference, ...]:
        """List the kinds of call that two ledgers make a different number of times, on other buffers, or at another cost.

        Calls are told apart by operation, group and phase, not by the strategy that makes them. They are those of a rank
        of ``stage``, or of one rank of each stage. Empty if the ledgers agree.
        """
        return differences(self.kinds(stage), other.kinds(stage))

    def to_dict(self) -> dict[str, Any]:
        """The whole ledger as JSON values; ``from_dict`` reads it back to an equal ledger."""
        return dict(import_module("meshcost.ledger_json").to_dict(self))

    @classmethod
    def from_dict(cls, data: Any) -> "Ledger":
        """Read what ``to_dict`` wrote. Raises LedgerError for anything else."""
        ledger: Ledger = import_module("meshcost.ledger_json").from_dict(data)
        return ledger

    @classmethod
    def from_json(cls, path: str | Path) -> "Ledger":
        """Read a file that ``meshcost analyze JOB --format json`` wrote, or ``to_dict``.

        Raises LedgerError, naming the file, for anything else.
        """
        if str(path).lstrip().startswith("{"):
            raise LedgerError("from_json reads a file: give its path. from_dict takes what is in it.")
        ledger: Ledger = import_module("meshcost.ledger_json").from_file(Path(path))
        return ledger

    def to_pandas(self) -> "pd.DataFrame":
        """One row for each event, with the columns of ``--format csv``.

        Raises LedgerError with the command to type if pandas is not installed.
        """
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise LedgerError("to_pandas needs pandas: pip install 'meshcost[pandas]'.") from None
        frame: pd.DataFrame = import_module("meshcost.report.data").as_frame(self, pandas)
        return frame

    def __rich__(self) -> Any:
        """Show the bill in a terminal. The picture lives above the ledger and is loaded by name, only when asked for."""
        return import_module("meshcost.report.terminal").bill(self)

    def _repr_html_(self) -> str:
        return str(import_module("meshcost.report.html").bill(self))
