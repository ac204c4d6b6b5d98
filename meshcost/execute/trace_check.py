"""The trace held against the prediction: every call of every step, rank by rank. Knows no torch until it runs.

for rank in check.ranks: check.hold(rank)
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from meshcost.errors import ExecutionError, JobError, MeshcostError
from meshcost.execute.crew import require_torch
from meshcost.execute.plan import free_bytes
from meshcost.execute.recording import Recording
from meshcost.execute.recording_compare import Mismatch, differences, first_out_of_order, text_of
from meshcost.job import Job, analyze, load
from meshcost.ledger import Ledger
from meshcost.models import Model
from meshcost.units import human_bytes

#: Weight, gradient and two moments, gathered weights beside them: bytes of one weight of a real rank, at most.
_BYTES_PER_WEIGHT = 24
#: What torch itself takes in each process.
_RANK_BYTES = 2**28
#: Widths are halved down to this, and a size that is scaled has at most so many weights on a stage.
_LEAST_WIDTH, _SCALED_WEIGHTS = 8, 2**22


@dataclass(frozen=True, slots=True)
class StepCheck:
    """One step of one rank: how many calls each side has, and what differs. ``step`` counts from 0."""

    rank: int
    step: int
    predicted: int
    observed: int
    payload_bytes: int
    mismatches: tuple[Mismatch, ...] = ()
    out_of_order: int | None = None

    @property
    def equal(self) -> bool:
        """Whether both sides have the same calls in the same order."""
        return not self.mismatches and self.out_of_order is None

    @property
    def verdict(self) -> str:
        """In a word or two."""
        if self.mismatches:
            return "DIFFERENT"
        return "equal" if self.equal else "OTHER ORDER"

    @property
    def alike(self) -> tuple[Hashable, ...]:
        """What two ranks have in common that differ in nothing but whom they talk to."""
        wrong = tuple(
            (x.phase, x.op, x.dtype, x.in_bytes, x.out_bytes, x.predicted, x.observed)
            for x in self.mismatches
        )
        return self.step, self.predicted, self.observed, self.payload_bytes, wrong, self.out_of_order

    def why(self, title: str) -> str:
        """What differs, line by line, under a title that names the run."""
        if self.mismatches:
            return text_of(self.mismatches, title)
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


@dataclass(frozen=True)
class TraceCheck:
    """What ``meshcost trace`` was asked to do.

    ``rank`` is one rank, ``every`` means all of them; otherwise one of each pipeline stage is looked at. ``scale`` runs a
    smaller model of the same family. Raises JobError or ExecutionError for what cannot be run.
    """

    path: Path
    rank: int | None = None
    every: bool = False
    steps: int = 3
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
        self.notes.append(_difference(asked.setting.model, small.setting.model))
        return small

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are looked at."""
        require_torch("trace runs PyTorch's own code")
        from meshcost.execute import trace

        trace.check(self.job)
        if self.rank is not None:
            return trace.ranks_of(self.job, [self.rank])
        return trace.ranks_of(self.job, "all" if self.every else "one per stage")

    @property
    def torch_version(self) -> str:
        """The version that ran."""
        import torch

        return str(torch.__version__)

    @property
    def title(self) -> str:
        """The layout and the version in words: ``fsdp on data=4 (torch 2.13.0)``."""
        axes = {axis: size for axis, size in self.job.mesh.axes.items() if size > 1}
        sizes = ", ".join(f"{axis}={size}" for axis, size in axes.items()) or "one rank"
        return f"{self.job.parallel.data.strategy} on {sizes} (torch {self.torch_version.partition('+')[0]})"

    @property
    def how(self) -> str:
        """How it is run, in a sentence."""
        ranks = f"{self.job.world_size:,} rank{'s' if self.job.world_size > 1 else ''}"
        where = f"{ranks} as real processes over Gloo" if self.real else f"a fake process group of {ranks}"
        return f"PyTorch's own code on {where}, {self.steps} step{'s' if self.steps > 1 else ''}."

    def named(self, step: int) -> str:
        """A step by its number; the last one stands for all that follow."""
        is_steady = step == self.steps - 1 and self.job.torch.step is None
        return f"{step} (steady state)" if is_steady else str(step)

    def as_dict(self, steps: Iterable[StepCheck]) -> dict[str, Any]:
        """What was found as JSON values: ``equal``, and for each rank the calls that did not match."""
        of_rank: dict[int, list[StepCheck]] = {}
        for step in steps:
            of_rank.setdefault(step.rank, []).append(step)
        rows = [
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
            }
            for rank, mine in of_rank.items()
        ]
        return {
            "equal": all(row["equal"] for row in rows),
            "model": self.job.setting.model.name,
            "torch": self.torch_version,
            "real": self.real,
            "notes": list(self.notes),
            "ranks": rows,
        }

    def run(self, progress: Callable[[int], None] = lambda rank: None) -> Iterator[StepCheck]:
        """Run the steps of every rank and yield what came of each; ``progress`` is called after each rank."""
        from meshcost.execute.trace import trace

        ranks = self.ranks
        if self.real:
            self._refuse_large()
            recordings = trace(self.job, ranks, steps=self.steps, real=True)
        for rank in ranks:
            recording = recordings[rank] if self.real else trace(self.job, [rank], steps=self.steps)[rank]
            yield from self.hold(recording)
            progress(rank)

    def hold(self, recording: Recording) -> Iterator[StepCheck]:
        """Hold each step of a recording against its prediction."""
        for step in range(self.steps):
            predicted = list(self._ledger(step).calls(recording.rank))
            observed = recording.at_step(step).calls
            yield StepCheck(
                recording.rank,
                step,
                len(predicted),
                len(observed),
                sum(call.payload_bytes for call in observed),
                differences(predicted, observed, rank=recording.rank),
                first_out_of_order(predicted, observed),
            )

    def _ledger(self, step: int) -> Ledger:
        """The bill of one step; a step that was asked for in the job, or the steady state, answers for the last one."""
        wanted = self.job.torch.step if step == self.steps - 1 else step
        if wanted not in self._bills:
            torch = self.job.torch.model_copy(update={"step": wanted})
            self._bills[wanted] = analyze(changed(self.job, torch=torch))
        return self._bills[wanted]

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


def changed(job: Job, **fields: Any) -> Job:
    """A job with other fields, and nothing of what the first one has worked out."""
    copy = job.model_copy(update=fields)
    for name in set(vars(copy)) - set(type(job).model_fields):
        del vars(copy)[name]
    return copy


def scaled(job: Job) -> Job:
    """The same job with a smaller model of its family: fewer blocks, and widths halved as long as the layout allows.

    Raises JobError where no smaller model divides as the layout wants.
    """
    model = job.setting.model
    short = replace(model, pattern=_pattern(model.pattern, job.program.schedule.virtual_stages))
    found = None
    for times in range(1, 16):
        widths = {
            symbol: size // 2**times if _is_width(symbol.name, size) else size
            for symbol, size in model.dims.items()
        }
        small = replace(short, dims=widths)
        try:
            tried = Job(**{**_fields(job), "model": small})
        except MeshcostError:
            break
        if any(
            _is_width(symbol.name, model.dims[symbol]) and size < _LEAST_WIDTH
            for symbol, size in widths.items()
        ):
            break
        found = tried
        if small.weights_total < _SCALED_WEIGHTS:
            break
    if found is None:
        raise JobError(f"trace: {model.name} cannot be made smaller for this layout. Leave --scale out.")
    return found


def _fields(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in type(job).model_fields if name in job.model_fields_set}


def _is_width(name: str, size: int) -> bool:
    return name in WIDTHS and size > 1


#: Symbols of widths; heads, experts and blocks are counted, not measured.
WIDTHS = ("h", "f", "f_e", "f_s", "V", "d_head", "d_v", "d_nope", "d_rope", "r_q", "r_kv")


def _pattern(pattern: Sequence[int], stages: int) -> tuple[int, ...]:
    """Two blocks, or one for each stage if that is more, taken evenly from all: the first and the last are among them.

    >>> _pattern((0, 0, 0, 1, 1, 1, 1, 1), stages=1), _pattern((0,) * 8, stages=4)
    ((0, 1), (0, 0, 0, 0))
    """
    number = min(len(pattern), -(-2 // stages) * stages)
    return tuple(pattern[place * (len(pattern) - 1) // max(1, number - 1)] for place in range(number))


def _difference(model: Model, small: Model) -> str:
    sizes = ", ".join(
        f"{symbol.name} {model.dims[symbol]:,} to {size:,}"
        for symbol, size in small.dims.items()
        if size != model.dims[symbol]
    )
    return f"Scaled down, for prediction and trace alike: {model.layers} blocks to {small.layers}; {sizes}."
