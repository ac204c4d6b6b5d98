"""Recordings of a script of one's own, held against the bill of a job: every call that each rank made, in order."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from meshcost.errors import JobError
from meshcost.execute.recording import Recording
from meshcost.execute.step_check import StepCheck, layout_of, rank_rows, step_check
from meshcost.job import Job, analyze


@dataclass(frozen=True)
class RecordCheck:
    """A job, and what ranks of its world called in one step, by rank.

    Raises JobError where the two are not of worlds of one size.
    """

    job: Job
    recordings: Mapping[int, Recording]
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the worlds, and note what is held against what."""
        worlds = {recording.world_size for recording in self.recordings.values()}
        if worlds != {self.job.world_size}:
            sizes = " and ".join(f"{size:,}" for size in sorted(worlds))
            raise JobError(
                f"--against: a job of {self.job.world_size:,} ranks, and the recording is of a world of {sizes}."
            )
        if self.job.framework != "torch":
            self.notes.append(
                f"The bill is that of framework: {self.job.framework}. framework: torch predicts what PyTorch calls."
            )

    @property
    def title(self) -> str:
        """The layout in words."""
        return layout_of(self.job)

    @property
    def how(self) -> str:
        """What is held against what, in a sentence."""
        return f"A recording of {len(self.recordings):,} of {self.job.world_size:,} ranks, against the bill of the job."

    @property
    def remarks(self) -> list[str]:
        """What a person should know of the step that was recorded."""
        unsteady = any(recording.about.get("steady") is False for recording in self.recordings.values())
        return ["The recorded step is not of the steady state, which the bill is of."] * unsteady

    def named(self, step: int) -> str:
        """A step by its number."""
        return str(step)

    @cached_property
    def steps(self) -> tuple[StepCheck, ...]:
        """The recorded step of each rank; of several the last that is like the one before it."""
        ledger = analyze(self.job)
        kept = {rank: recording.steady() for rank, recording in sorted(self.recordings.items())}
        return tuple(
            step_check(rank, one.about["step"], list(ledger.calls(rank)), one.calls)
            for rank, one in kept.items()
        )

    def as_dict(self) -> dict[str, Any]:
        """What was found as JSON values: ``equal``, and for each rank the calls that did not match."""
        rows = rank_rows(self.steps)
        return {
            "equal": all(row["equal"] for row in rows),
            "model": self.job.setting.model.name,
            "framework": self.job.framework,
            "notes": [*self.notes, *self.remarks],
            "ranks": rows,
        }
