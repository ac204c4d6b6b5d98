"""The trace held against the prediction: every call of every step, rank by rank. Knows no torch until it runs.

for rank in check.ranks: check.hold(rank)
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from meshcost.errors import ExecutionError, JobError, MeshcostError
from meshcost.execute.counters import Bytes
from meshcost.execute.crew import require_torch
from meshcost.execute.plan import free_bytes
from meshcost.execute.recording import Recording
from meshcost.execute.recording_compare import first_out_of_order
from meshcost.execute.step_check import StepCheck, layout_of, rank_rows, step_check
from meshcost.execute.trace_rules import ranks_of, trace_problems
from meshcost.execute.trace_scale import difference, scaled
from meshcost.execute.trace_wire import TCP, wire_of
from meshcost.job import Job, analyze, load
from meshcost.ledger import Ledger
from meshcost.strategies.torch_rules import first_predicted
from meshcost.units import human_bytes

#: Weight, gradient and two moments, gathered weights beside them: bytes of one weight of a real rank, at most.
_BYTES_PER_WEIGHT = 24
#: What torch itself takes in each process.
_RANK_BYTES = 2**28
#: Torch needs fewer steps than this until all that follow call alike.
_MOST_FIRST_STEPS = 8
_NOT_COMPARED = (
    "step 0, in which stages without static_shapes compute one micro-batch more to find out what they send."
)


@dataclass(frozen=True)
class TraceCheck:
    """What ``meshcost trace`` was asked to do.

    ``rank`` is one rank, ``every`` means all of them; otherwise one of each pipeline stage is looked at, and every one
    where all are run, which is ``real``. ``steps`` is how many are run; None is as many as reach the steady state, and the
    step that the job asks for. ``scale`` runs a smaller model of the same family. Raises JobError or
    ExecutionError for what cannot be run.
    """

    path: Path
    rank: int | None = None
    every: bool = False
    steps: int | None = None
    real: bool = False
    scale: bool = False
    notes: list[str] = field(default_factory=list)

    @cached_property
    def job(self) -> Job:
        """The job under ``framework: torch``, scaled down if that was asked for."""
        asked = load(self.path, framework="torch")
        if not self.scale:
            return asked
        small = scaled(asked)
        self.notes.append(difference(asked.setting.model, small.setting.model))
        return small

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are looked at. Whatever cannot be traced is refused here, before torch is loaded."""
        if problems := tuple(trace_problems(self.job, real=self.real)):
            raise JobError(f"{self.path}: {problem}" for problem in problems)
        if self.steps is not None and self.steps <= self._first_predicted:
            raise ExecutionError(f"--steps: {_NOT_COMPARED} Choose at least {self._first_predicted + 1}.")
        if self.real:
            self._refuse_large()
        chosen = ranks_of(
            self.job,
            [self.rank] if self.rank is not None else "all" if self.every or self.real else "one per stage",
        )
        require_torch("trace runs PyTorch's own code")
        return chosen

    @property
    def torch_version(self) -> str:
        """The version that ran."""
        import torch

        return str(torch.__version__)

    @property
    def title(self) -> str:
        """The layout and the version in words: ``fsdp on data 4 (torch 2.13.0)``."""
        return f"{layout_of(self.job)} (torch {self.torch_version.partition('+')[0]})"

    @property
    def how(self) -> str:
        """How it is run, in a sentence."""
        ranks = f"{self.job.world_size:,} rank{'s' if self.job.world_size > 1 else ''}"
        where = f"{ranks} as real processes over Gloo" if self.real else f"a fake process group of {ranks}"
        return f"PyTorch's own code on {where}, {self.count} step{'s' if self.count > 1 else ''}."

    @cached_property
    def count(self) -> int:
        """How many steps are run."""
        asked = self.job.torch.step or 0
        return self.steps if self.steps is not None else max(self._first_steady, asked) + 1

    def named(self, step: int) -> str:
        """A step by its number, and whether all that follow it are predicted to be like it."""
        return f"{step} (steady state)" if step >= self._first_steady else str(step)

    @cached_property
    def _first_steady(self) -> int:
        """The first step from which on every step of the ranks that are looked at is predicted alike."""
        first = _MOST_FIRST_STEPS
        while first > self._first_predicted and all(self._is_steady(first - 1, rank) for rank in self.ranks):
            first -= 1
        return first

    @property
    def _first_predicted(self) -> int:
        return first_predicted(self.job.setting)

    def _is_steady(self, step: int, rank: int) -> bool:
        calls = (list(self._ledger(number).calls(rank)) for number in (step, None))
        return first_out_of_order(*calls) is None

    @property
    def remarks(self) -> list[str]:
        """What a person should know of the steps that were run."""
        first, asked = self._first_steady, self.job.torch.step
        found = [f"Not compared: {_NOT_COMPARED}"] if self._first_predicted else []
        if first >= self.count:
            found.append(
                f"No steady state was reached: it begins with step {first}. --steps {first + 1} runs it."
            )
        if asked is not None and asked >= self.count:
            found.append(f"torch.step: step {asked} was not run. --steps {asked + 1} runs it.")
        return found

    def as_dict(self, steps: Iterable[StepCheck]) -> dict[str, Any]:
        """What was found as JSON values: ``equal``, and for each rank the calls that did not match."""
        rows = rank_rows(steps)
        return {
            "equal": all(row["equal"] for row in rows),
            "model": self.job.setting.model.name,
            "torch": self.torch_version,
            "real": self.real,
            "steady_from_step": self._first_steady,
            "notes": [*self.notes, *self.remarks],
            "ranks": rows,
        }

    def run(self, progress: Callable[[int], None] = lambda rank: None) -> Iterator[StepCheck]:
        """Run the steps of every rank and yield what came of each; ``progress`` is called after each rank."""
        from meshcost.execute.trace import trace

        ranks = self.ranks
        if self.real:
            recordings = trace(self.job, ranks, steps=self.count, real=True)
        for rank in ranks:
            try:
                recording = recordings[rank] if self.real else trace(self.job, [rank], steps=self.count)[rank]
            except MeshcostError:
                raise
            except Exception as error:  # whatever torch, or what it calls, stops with
                first = re.split(r"[.:]?(?:\s*\n|\.\s|\.$)", str(error), maxsplit=1)[0]
                raise ExecutionError(
                    f"trace: PyTorch stopped with {type(error).__name__}: {first}."
                ) from error
            yield from self.hold(recording)
            progress(rank)

    def hold(self, recording: Recording) -> Iterator[StepCheck]:
        """Hold each step of a recording against its prediction."""
        counted = recording.about.get(TCP)
        for step in range(self._first_predicted, self.count):
            predicted = list(self._ledger(step).calls(recording.rank))
            observed = recording.at_step(step).calls
            measured = Bytes(*counted[step]) if counted else None
            wire = wire_of(recording.rank, predicted, observed, measured) if self.real else None
            yield step_check(recording.rank, step, predicted, observed, wire)

    def _ledger(self, step: int | None) -> Ledger:
        """The bill of one step; None is every step of the steady state."""
        if step not in self._bills:
            torch = self.job.torch.model_copy(update={"step": step})
            self._bills[step] = analyze(self.job.model_copy(update={"torch": torch}))
        return self._bills[step]

    @cached_property
    def _bills(self) -> dict[int | None, Ledger]:
        return {}

    def _refuse_large(self) -> None:
        model, world = self.job.setting.model, self.job.world_size
        needed = world * (
            _RANK_BYTES + _BYTES_PER_WEIGHT * model.weights_total // max(1, self.job.mesh.stages)
        )
        if needed > free_bytes():
            raise ExecutionError(
                f"trace: {world} real ranks of {model.name} would take {human_bytes(needed)}, and "
                f"{human_bytes(free_bytes())} are free. Add --scale, or leave --real out: then nothing takes memory."
            )
