"""A whole training step, executed: the calls of a ledger on real processes, each rank in its own order.

Every group of the job's mesh becomes a process group. Payloads above a cap are scaled down to it, because bytes are
linear in the payload; elements are fp32 whatever the job's data type, because only bytes are looked at.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from meshcost.collectives import ALGORITHMS
from meshcost.collectives.gloo import Traffic
from meshcost.errors import ExecutionError
from meshcost.execute.plan import ITEM_BYTES, Case, fitting_ranks, free_bytes
from meshcost.ledger import Call, Event, Ledger
from meshcost.units import human_bytes

#: Ranks that one core can still keep alive, and calls that a step may have on one rank.
_RANKS_PER_CORE, MOST_CALLS = 32, 50_000
_ONE_MESSAGE = ("send", "recv")
_SPLIT = ("all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True)
class Step:
    """A ledger ready to be executed: ``cap`` is the largest payload in bytes that is really sent, None for no limit.

    With ``schedules`` every collective is the bill's own algorithm, interpreted over point-to-point messages; without,
    it is the native one of the library. Raises ExecutionError for a job that this machine cannot start.
    """

    ledger: Ledger
    cap: int | None = None
    schedules: bool = False

    @property
    def world(self) -> int:
        """Ranks of the job."""
        return self.ledger.mesh.world_size

    def check(self, *, free: int | None = None, cores: int | None = None) -> None:
        """Raise ExecutionError, with what to reduce, unless this machine can start all ranks of the job."""
        free = free_bytes() if free is None else free
        fitting, alive = fitting_ranks(free, self.largest), _RANKS_PER_CORE * (cores or os.cpu_count() or 1)
        axes = {axis: size for axis, size in self.ledger.mesh.axes.items() if size > 1}
        if self.world > min(fitting, alive):
            widest = max(axes, key=lambda axis: axes[axis])
            or_cap = " or --cap" if alive >= self.world else ""
            raise ExecutionError(
                f"the job has {self.world:,} ranks, and this machine can start {min(fitting, alive):,} with "
                f"{human_bytes(self.largest)} each. Reduce parallel.{widest}.size (now {axes[widest]:,}){or_cap}, or run it "
                "under torchrun on more machines."
            )
        calls = max((totals.calls for totals in self.ledger.by_stage), default=0)
        if calls > MOST_CALLS:
            raise ExecutionError(
                f"a step has {calls:,} calls on one rank, and {MOST_CALLS:,} are run at most: reduce batch.global_batch."
            )

    @cached_property
    def largest(self) -> int:
        """Bytes of the largest payload that is really sent."""
        return max(
            (self.scaled(event.op, event.group_size, event.payload_bytes) for event in self.ledger), default=0
        )

    @property
    def is_scaled(self) -> bool:
        """Whether a payload is larger than the cap."""
        return self.cap is not None and any(event.payload_bytes > self.cap for event in self.ledger)

    def scaled(self, op: str, ranks: int, payload_bytes: int) -> int:
        """The payload that is really sent: at most the cap, whole elements, equal chunks where they are needed."""
        step = ITEM_BYTES * (ranks if op in _SPLIT else 1)
        size = payload_bytes if self.cap is None else min(payload_bytes, self.cap)
        return max(step, size // step * step)

    def cases(self, rank: int) -> list[Case]:
        """The calls of one rank, in order; a receive is the other end of a ``send_recv``."""
        return [self._case(call) for call in self.ledger.calls(rank)]

    def script(self, rank: int) -> "Script":
        """The calls of one rank, written shortly."""
        index: dict[Case, int] = {}
        calls = ((self._case(call), call.tag or 0) for call in self.ledger.calls(rank))
        order = [(index.setdefault(case, len(index)), tag) for case, tag in calls]
        return Script(list(index), order)

    def shapes(self) -> list[Case]:
        """Every kind of call once, in the order of the ledger, whichever ranks make it: it is numbered as among the first.

        Quick for any number of ranks and micro-batches, because no call is unrolled.
        """
        return list(dict.fromkeys(self._shape(event) for event in self.ledger))

    def _shape(self, event: Event) -> Case:
        members = tuple(range(2 if event.op in _ONE_MESSAGE else event.group_size))
        return self._of(event, members, event.payload_bytes)

    def kinds(self) -> list[Case]:
        """Every kind of call once, on every group that makes it; the groups of a kind follow each other."""
        by_kind: dict[tuple[str, str, int, int, str], dict[Case, None]] = {}
        for rank in range(self.world):
            for case in self._distinct[rank]:
                kind = case.op, case.algorithm, case.ranks, case.payload_bytes, case.on
                by_kind.setdefault(kind, {})[case] = None
        return [case for found in by_kind.values() for case in found]

    @cached_property
    def _distinct(self) -> Mapping[int, list[Case]]:
        return {rank: list(dict.fromkeys(self.cases(rank))) for rank in range(self.world)}

    def _case(self, call: Call) -> Case:
        event = self._events[call.strategy, call.op, call.phase, call.why]
        return self._of(event, call.ranks, max(call.in_bytes, call.out_bytes))

    def _of(self, event: Event, members: tuple[int, ...], payload_bytes: int) -> Case:
        op = "send_recv" if event.op in _ONE_MESSAGE else event.op
        played = self.schedules and op != "send_recv" and not ALGORITHMS[event.priced.algorithm].switch
        algorithm = event.priced.algorithm if played else "native"
        size = self.scaled(op, len(members), payload_bytes)
        return Case(op, members, size, algorithm, on=" x ".join(event.axes))

    @cached_property
    def _events(self) -> Mapping[tuple[str, str, str, str], Event]:
        return {(x.strategy, x.op, x.phase, x.why): x for x in self.ledger}

    def predicted(self, rank: int) -> Traffic:
        """What one rank moves in the whole step, as Gloo does it, frames included."""
        return moved(self.cases(rank), rank)

    def billed(self, rank: int) -> int:
        """Bytes that the bill says this rank sends in the step, scaled as the payloads are; no frames in it."""
        stage, total = self.ledger.mesh.stage(rank), Fraction(0)
        for event in self.ledger:
            if stage in event.stages:
                total += event.calls * self._billed(event, rank)
        return round(total)

    def _billed(self, event: Event, rank: int) -> Fraction:
        position = self.ledger.group_of(event, rank).index(rank) if event.priced.runs else 0
        share = Fraction(self.scaled(event.op, event.group_size, event.payload_bytes), event.payload_bytes)
        return event.priced.at(position)[0] * share


def moved(cases: Iterable[Case], rank: int) -> Traffic:
    """What one rank moves in some calls together, as Gloo makes them, frames included."""
    total, known = Traffic(), dict[Case, Traffic]()
    for case in cases:
        if case not in known:
            known[case] = case.predict(case.members.index(rank))
        total += known[case]
    return total


class Script(NamedTuple):
    """Calls of one rank: the distinct ones, and in order which of them and, for a message, its tag."""

    cases: list[Case]
    order: list[tuple[int, int]]
