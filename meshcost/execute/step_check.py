"""One step of one rank, held against its prediction: the calls of both sides, and what differs."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshcost.execute.call_kinds import CallLike
from meshcost.execute.recording import RecordedCall
from meshcost.execute.recording_compare import Mismatch, differences, first_out_of_order, text_of
from meshcost.execute.trace_wire import Wire
from meshcost.job import Job


@dataclass(frozen=True, slots=True)
class StepCheck:
    """One step of one rank: how many calls each side has, and what differs. ``step`` counts from 0.

    ``wire`` holds the bytes that a real rank moved against the prediction; None on the fake group.
    """

    rank: int
    step: int
    predicted: int
    observed: int
    payload_bytes: int
    mismatches: tuple[Mismatch, ...] = ()
    out_of_order: int | None = None
    wire: Wire | None = None

    @property
    def equal(self) -> bool:
        """Whether both sides have the same calls in the same order, and moved the same bytes."""
        return self._calls_alike and (self.wire is None or self.wire.agrees)

    @property
    def _calls_alike(self) -> bool:
        return not self.mismatches and self.out_of_order is None

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.mismatches:
            return "DIFFERENT"
        if not self._calls_alike:
            return "OTHER ORDER"
        return "equal" if self.equal else "OTHER BYTES"

    @property
    def alike(self) -> tuple[Hashable, ...]:
        """What two ranks have in common that differ in nothing but whom they talk to."""
        wrong = tuple(
            (x.phase, x.op, x.dtype, x.in_bytes, x.out_bytes, x.predicted, x.observed)
            for x in self.mismatches
        )
        verdict = self.verdict, self.out_of_order
        return self.step, self.predicted, self.observed, self.payload_bytes, wrong, verdict

    def why(self, title: str) -> str:
        """What differs, line by line, under a title that names the run."""
        if self.mismatches:
            return text_of(self.mismatches, title)
        if self._calls_alike and self.wire is not None:
            return (
                f"other bytes: {title}: the same calls, but the sockets of rank {self.rank} counted "
                f"{abs(self.wire.off_bytes):,} B {'more' if self.wire.off_bytes > 0 else 'less'} than these calls move."
            )
        place = 0 if self.out_of_order is None else self.out_of_order
        return f"other order: {title}: the same calls, but call {place + 1:,} is not the predicted one."

    def surplus(self, *, observed: bool) -> Iterator[dict[str, Any]]:
        """Calls that one side has more often than the other, as JSON values."""
        for found in self.mismatches:
            more = found.observed - found.predicted if observed else found.predicted - found.observed
            if more > 0:
                row = asdict(found)
                for name in ("rank", "predicted", "observed"):
                    del row[name]
                yield {"step": self.step, "times": more, **row, "ranks": list(found.ranks)}


def step_check(
    rank: int,
    step: int,
    predicted: Sequence[CallLike],
    observed: Sequence[RecordedCall],
    wire: Wire | None = None,
) -> StepCheck:
    """Hold the calls of one rank in one step against those that were predicted."""
    return StepCheck(
        rank,
        step,
        len(predicted),
        len(observed),
        sum(call.payload_bytes for call in observed),
        differences(predicted, observed, rank=rank),
        first_out_of_order(predicted, observed),
        wire,
    )


def rank_rows(steps: Iterable[StepCheck]) -> list[dict[str, Any]]:
    """What was found as JSON values: for each rank whether all is equal, and the calls that did not match."""
    of_rank: dict[int, list[StepCheck]] = {}
    for step in steps:
        of_rank.setdefault(step.rank, []).append(step)
    return [
        {
            "rank": rank,
            "equal": all(step.equal for step in mine),
            "calls": sum(step.observed for step in mine),
            "predicted": [row for step in mine for row in step.surplus(observed=False)],
            "observed": [row for step in mine for row in step.surplus(observed=True)],
            "out_of_order": [
                {"step": step.step, "call": step.out_of_order}
                for step in mine
                if step.out_of_order is not None and not step.mismatches
            ],
            "bytes": [{"step": x.step, **x.wire.as_dict()} for x in mine if x.wire is not None],
        }
        for rank, mine in of_rank.items()
    ]


def layout_of(job: Job) -> str:
    """The layout in words: ``fsdp on data 4``."""
    mesh = job.mesh
    experts = {axis: mesh.size(axis) for axis in ("expert", "expert_tensor")}
    axes = {axis: size for axis, size in {**mesh.axes, **experts}.items() if size > 1}
    sizes = ", ".join(f"{axis} {size:,}" for axis, size in axes.items()) or "one rank"
    # What shares out or sums gradients has a name where more than one rank does.
    named = mesh.size("data", "replicate", "context") > 1
    return f"{job.parallel.data.strategy} on {sizes}" if named else sizes
