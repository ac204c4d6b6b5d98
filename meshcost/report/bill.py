"""What a bill shows, before anybody draws it: which events, in which order, under which names, and whose totals."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from meshcost.clusters import Cluster
from meshcost.errors import LedgerError
from meshcost.event import BETWEEN, CLUSTER, INSIDE, PHASES, Event, Totals, by_link
from meshcost.ledger import KEYS, Ledger
from meshcost.listing import listed
from meshcost.timing import caveat, timing


class Line(NamedTuple):
    """One event of a bill: its number and its name, by which ``explain`` finds it, and what it costs the one who pays."""

    number: int
    name: str
    event: Event
    totals: Totals


@dataclass(frozen=True)
class Bill:
    """A ledger as it is shown: whole, or for the ranks of one ``stage``, or for one ``rank``.

    With a ``cluster`` that says how fast its links are, every event has its seconds, too: communication alone. Without one,
    a saved bill has those that it states.
    Whatever is summed, one rank pays it all: ``rank``, or the busiest of the ``stage``, or without either the busiest of
    all, and then the events of all stages are listed. Raises LedgerError for a stage or rank that does not exist, or that
    are both given and disagree.
    """

    ledger: Ledger
    stage: int | None = None
    rank: int | None = None
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        """Check the stage and the rank."""
        mesh = self.ledger.mesh
        if self.rank is not None:
            home = mesh.stage(self.rank)
            if self.stage not in (None, home):
                raise LedgerError(
                    f"rank {self.rank} is of stage {home}, not {self.stage}: leave one of them out."
                )
        if self.stage is not None:
            mesh.check_stage(self.stage)

    @cached_property
    def payer_stage(self) -> int:
        """Stage of the rank whose totals are shown."""
        if self.rank is not None:
            return self.ledger.mesh.stage(self.rank)
        return self.ledger.busiest_stage if self.stage is None else self.stage

    @cached_property
    def payer_rank(self) -> int:
        """The rank whose totals are shown."""
        return self.ledger.busiest_ranks[self.payer_stage] if self.rank is None else self.rank

    @property
    def timed(self) -> bool:
        """Whether there are seconds: of a cluster that says how fast its links are, or stated by a saved bill."""
        return self.speeds is not None or bool(self.ledger.seconds)

    @property
    def speeds(self) -> Cluster | None:
        """The cluster that the seconds are counted on; None where it does not say how fast its links are."""
        return self.cluster if self.cluster is not None and self.cluster.links else None

    @property
    def timed_on(self) -> dict[str, str]:
        """The ``cluster`` that the seconds are of, by name, and the ``caveat`` that stands beside them."""
        if (speeds := self.speeds) is not None:
            return {"cluster": speeds.name, "caveat": caveat(speeds)}
        return {name: self.ledger.seconds[name] for name in ("cluster", "caveat")}

    @cached_property
    def _stated(self) -> dict[int, float]:
        """What a saved bill states of each event."""
        return dict(zip(map(id, self.ledger), self.ledger.seconds["events"], strict=True))

    def seconds(self, *events: Event) -> float | None:
        """Time of all calls of some events, one after the other; None where nothing is known of the links."""
        if not self.timed:
            return None
        if (speeds := self.speeds) is None:
            return sum(self._stated[id(event)] for event in events)
        return sum(event.calls * timing(event, speeds).seconds for event in events)

    def seconds_by(self, by: str) -> dict[str, float | None]:
        """Time of the payer's calls, added up as ``groups`` adds up bytes; nothing by link, or without speeds."""
        if not self.timed or by == "link":
            return {}
        if by == "stage":
            return {stage: self.stage_seconds[int(stage)] for stage in self.groups(by)}
        sums: dict[str, list[Event]] = {key: [] for key in self.groups(by)}
        for event in self._own_events():
            sums[KEYS[by](event)].append(event)
        return {key: self.seconds(*events) for key, events in sums.items()}

    @cached_property
    def stage_seconds(self) -> tuple[float, ...]:
        """Time of all calls of a rank of each stage; nothing without speeds."""
        stages = [[x for x in self.ledger if stage in x.stages] for stage in range(self.ledger.mesh.stages)]
        return tuple(self.seconds(*events) or 0.0 for events in stages) if self.timed else ()

    @property
    def slowest_stage(self) -> int | None:
        """The stage whose ranks communicate longest: who sends the most bytes need not. None without speeds."""
        times = self.stage_seconds
        return max(range(len(times)), key=lambda i: (times[i], i == self.payer_stage, -i)) if times else None

    @property
    def total_seconds(self) -> float | None:
        """Time of all calls of the rank that pays, nothing hidden."""
        return self.seconds(*self._own_events())

    @property
    def whole(self) -> bool:
        """Whether all events are listed."""
        return self.stage is None and self.rank is None

    @property
    def payer(self) -> str:
        """Say whose totals are shown."""
        where = f" of stage {self.payer_stage}" if self.ledger.mesh.stages > 1 else ""
        if self.rank is not None:
            return f"rank {self.rank}{where}"
        place = f"{where}, the busiest" if self.whole else f", the busiest{where}"
        return f"rank {self.payer_rank}{place}"

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Events, sorted: strategies that send most first, then by what one event sends, then as they happen."""
        return tuple(
            Line(number, name, event, self._pays(event))
            for number, name, event in listed(self.ledger)
            if self.whole or self.payer_stage in event.stages
        )

    @cached_property
    def totals(self) -> Totals:
        """Totals of the rank that pays."""
        return self.ledger.rank_totals(self.payer_rank)

    def groups(self, by: str) -> dict[str, Totals]:
        """Add up what the payer pays. Largest first, but stages and phases in their order.

        By ``link``, ``sent_bytes`` is what takes that kind of link, and nothing else is told apart. A whole bill has a
        group also for what only other stages call, so that what all ranks send together adds up.
        """
        if by == "link":
            return by_link(self._pays(event) for event in self._own_events())
        if by == "stage":
            return self._stages()
        sums = {KEYS[by](event): Totals() for event in self.ledger if self.whole}
        for event in self._own_events():
            key = KEYS[by](event)
            sums[key] = sums.get(key, Totals()) + self._pays(event)
        if by == "phase":
            return {phase: sums[phase] for phase in PHASES if phase in sums}
        return dict(sorted(sums.items(), key=lambda item: -max(item[1].sent_bytes, item[1].received_bytes)))

    @property
    def all_together(self) -> dict[str, int]:
        """What all ranks together send; nothing for a part of the bill."""
        return self.ledger.cluster if self.whole else {}

    def together(self, by: str) -> dict[str, dict[str, int]]:
        """What all ranks together send, added up as ``groups`` does; nothing for a part of the bill, or by stage.

        By ``link``, ``cluster_sent_bytes`` is what takes that kind of link.
        """
        if not self.whole or by == "stage":
            return {}
        if by == "link":
            sent, between = (self.ledger.cluster[name] for name in CLUSTER)
            return {INSIDE: {CLUSTER[0]: sent - between}, BETWEEN: {CLUSTER[0]: between}}
        kinds: dict[str, list[Event]] = {}
        for event in self.ledger:
            kinds.setdefault(KEYS[by](event), []).append(event)
        return {key: replace(self.ledger, events=tuple(events)).cluster for key, events in kinds.items()}

    def _own_events(self) -> Iterator[Event]:
        return (event for event in self.ledger if self.payer_stage in event.stages)

    def _pays(self, event: Event) -> Totals:
        """What the payer pays; what only other stages call is listed with what its own busiest rank pays."""
        return self.ledger.paid(event, self.payer_rank) if self.payer_stage in event.stages else event.totals

    def _stages(self) -> dict[str, Totals]:
        if self.whole:
            return self.ledger.group("stage")
        return {str(self.payer_stage): self.totals}
