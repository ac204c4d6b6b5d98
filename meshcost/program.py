"""The program of one rank: which unit it computes, forward or backward, for which micro-batch, in which order."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from meshcost.schedule import Action, Schedule

Phase = Literal["forward", "backward", "optimizer"]

#: Label of the end of a micro-batch.
MICRO_BATCH = "micro-batch"

#: Before the first micro-batch, and after the optimizer's update.
BEGIN, REPORT = "begin", "report"


@dataclass(frozen=True, slots=True)
class Part:
    """One unit in one pass. ``first`` and ``last`` say whether it is the unit's first or last pass in the step.

    ``above`` and ``upto`` restrict the part to events whose order lies between them: something else is called there.
    """

    unit: str
    phase: Phase
    micro_batch: int | None
    label: str
    first: bool = False
    last: bool = False
    ops: Literal["send", "others"] | None = None
    peer_stage: int | None = None
    shift: int = 0
    tag: int | None = None
    above: tuple[int, ...] | None = None
    upto: tuple[int, ...] | None = None

    def holds(self, order: tuple[int, ...]) -> bool:
        """Whether an event of this order lies within the part."""
        return (self.above is None or order > self.above) and (self.upto is None or order <= self.upto)

    @property
    def layer(self) -> int | None:
        """Number of the block in the model; None for what is no block."""
        name, _, number = self.label.rpartition(" ")
        return int(number) if number.isdigit() and self.unit.endswith(name) else None

    def allows(self, op: str, micro_batches: str, shift: int) -> bool:
        """Whether an event with this operation, rule for micro-batches and distance to its peer happens here."""
        if self.ops is not None and ((op == "send") != (self.ops == "send") or shift != self.shift):
            return False
        return (
            micro_batches == "every"
            or (micro_batches == "first" and self.first)
            or (micro_batches == "last" and self.last)
        )


def phase_of(action: Action) -> Literal["forward", "backward"]:
    """Phase of a pass."""
    return "forward" if action.kind == "F" else "backward"


@dataclass(frozen=True)
class Program:
    """A schedule, and the units of each virtual stage in model order, as runs of (unit, how many).

    >>> program = Program(Schedule("1f1b", 1, 1, 1), ((("embedding", 1), ("dense", 2), ("head", 1)),))
    >>> [part.label for part in program.walk(0) if part.phase == "backward"]
    ['head', 'dense 1', 'dense 0', 'embedding', 'micro-batch']
    """

    schedule: Schedule
    units: tuple[tuple[tuple[str, int], ...], ...]

    def walk(self, rank: int) -> Iterator[Part]:
        """Yield everything one pipeline rank computes, unit by unit, with the boundaries between stages."""
        passes = {stage: self._passes(stage, rank) for stage in self.schedule.hosted(rank)}
        done: dict[tuple[str, int], int] = {}
        left = self._backward_passes(rank)
        for action in self.schedule.actions(rank):
            number = done[action.kind, action.stage] = done.get((action.kind, action.stage), 0) + 1
            yield from self._pass(rank, action, first=number == 1, last=number == passes[action.stage])
            if action.kind == "B":
                left[action.micro_batch] -= 1
                if not left[action.micro_batch]:
                    for site in dict.fromkeys(("micro_batch", self.end_of(action.stage))):
                        yield Part(site, "backward", action.micro_batch, MICRO_BATCH)

    def end_of(self, stage: int) -> str:
        """Site at the end of a micro-batch. In a bidirectional schedule it went through one stage of two on its rank."""
        alike = self.units.index(self.units[stage])
        return f"micro_batch {alike}" if self.schedule.placement == "mirror" else "micro_batch"

    def begin(self) -> Iterator[Part]:
        """Yield what comes before the first micro-batch."""
        yield Part(BEGIN, "forward", None, "step")

    def finish(self, rank: int) -> Iterator[Part]:
        """Yield what comes after the last micro-batch: each phase once, the optimizer with two walks through all weights."""
        yield Part("step", "forward", None, "step")
        yield Part("step", "backward", None, "step")
        yield from self._weights(rank, "clip")
        yield Part("step", "optimizer", None, "step")
        yield from self._weights(rank, "update")
        yield Part(REPORT, "optimizer", None, "step")

    def _weights(self, rank: int, what: str) -> Iterator[Part]:
        for stage in self.schedule.hosted(rank):
            for unit, label in self.labelled(stage):
                yield Part(f"{what} {unit}", "optimizer", None, label)

    def _backward_passes(self, rank: int) -> list[int]:
        """Backward passes of each micro-batch on this rank: after the last one, its gradients are complete."""
        hosted, count = self.schedule.hosted(rank), self.schedule.micro_batches
        return [sum(self.schedule.host(stage, i) == rank for stage in hosted) for i in range(count)]

    def _passes(self, stage: int, rank: int) -> int:
        if self.schedule.placement != "mirror":
            return self.schedule.micro_batches
        return sum(self.schedule.host(stage, i) == rank for i in range(self.schedule.micro_batches))

    def _pass(self, rank: int, action: Action, *, first: bool, last: bool) -> Iterator[Part]:
        yield from self.message(rank, action, "others")
        units = list(self.labelled(action.stage))
        for unit, label in units if action.kind == "F" else reversed(units):
            yield Part(unit, phase_of(action), action.micro_batch, label, first, last)
        yield from self.message(rank, action, "send")

    def message(self, rank: int, action: Action, ops: Literal["send", "others"]) -> Iterator[Part]:
        """Yield what a stage receives for a pass, or sends after it, unless its neighbour is on the same rank or is none."""
        ahead = (action.kind == "F") == (ops == "send")
        neighbour = action.stage + (1 if ahead else -1)
        if not 0 <= neighbour < self.schedule.virtual_stages:
            return
        peer = self.schedule.host(neighbour, action.micro_batch)
        if peer != rank:
            label, ranks = f"stage {action.stage}", self.schedule.ranks
            shift = (peer - rank if ops == "send" else rank - peer) % ranks
            tag = self.schedule.tag(action if ops == "send" else action._replace(stage=neighbour))
            yield Part(
                "boundary",
                phase_of(action),
                action.micro_batch,
                label,
                ops=ops,
                peer_stage=peer,
                shift=shift,
                tag=tag,
            )

    def labelled(self, stage: int) -> Iterator[tuple[str, str]]:
        """Yield the units of a virtual stage, each with its label: ``dense 3`` is the block of layer 3."""
        layer = sum(n for runs in self.units[:stage] for unit, n in runs if unit not in ("embedding", "head"))
        for unit, number in self.units[stage]:
            for _ in range(number):
                if unit in ("embedding", "head"):
                    yield unit, unit
                else:
                    yield unit, f"{unit} {layer}"
                    layer += 1
