"""Verify: run collectives on real processes and hold what the kernel counted against what was predicted.

``verify(cases())`` yields one row for each rank of each call. Knows no torch: the ranks have it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from meshcost.collectives.gloo import Traffic
from meshcost.collectives.operations import operation
from meshcost.errors import ExecutionError
from meshcost.execute.crew import Crew, Fault, resolve
from meshcost.execute.launcher import launch, launched
from meshcost.execute.nccl import has_form, nccl_traffic
from meshcost.execute.plan import Case, bound
from meshcost.execute.results import Results, complete
from meshcost.execute.step import Step
from meshcost.formula import value
from meshcost.measurement import Key, Measurement
from meshcost.symbols import S, n

#: Who predicts the bytes of a position of a call.
Predict = Callable[[Case, int], Traffic]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to run: seconds for each call, calls to average over, where ranks meet, what they run on, where rows go."""

    timeout: float = 60.0
    iterations: int = 3
    host: str = "127.0.0.1"
    port: int = 0
    backend: str = "gloo"
    device: str = "cpu"
    results: Path | None = None
    resume: bool = False
    fault: Fault | None = None


def verify(
    planned: Sequence[Case],
    settings: Settings = Settings(),
    *,
    predict: Predict = Case.predict,
    progress: Callable[[Case], None] | None = None,
) -> Iterator[Measurement]:
    """Yield the rows of every call, as they come; those that ``--resume`` finds first.

    Raises ExecutionError with one sentence if the memory would not do, if a rank fails, hangs or dies, or if the results
    cannot be written; also when it is interrupted. Rows that were yielded or written before stay.
    """
    results, kept, left = kept_rows(planned, settings)
    yield from _again(kept, progress)
    if left:
        world = max(max(case.members) for case in left) + 1
        if not launched():
            bound(left, world=world)
        with _Going(results) as going, _runner(world, settings) as runner:
            yield from _measured(runner, left, settings, predict, progress, going)
            going.doing = _ENDING


def kept_rows(
    planned: Sequence[Case], settings: Settings
) -> tuple[Results | None, dict[Case, list[Measurement]], list[Case]]:
    """The file of results, what ``--resume`` finds in it, and the calls that are left.

    Raises ExecutionError if the file cannot be read or gone on with.
    """
    if settings.results is None:
        return None, {}, list(planned)
    results = Results(settings.results)
    done = _done(results, resume=settings.resume)
    kept = {case: rows for case in planned if (rows := done.get(_key(case, settings)))}
    _refuse_other_means(results.path, [row for rows in kept.values() for row in rows], settings.iterations)
    return results, kept, [case for case in planned if case not in kept]


def _refuse_other_means(path: Path, rows: Sequence[Measurement], iterations: int) -> None:
    """Raise ExecutionError unless all rows are means of as many calls as are asked for."""
    others = sorted({row.iterations for row in rows} - {iterations})
    if others:
        count = sum(row.iterations != iterations for row in rows)
        means = " and ".join(map(str, others))
        raise ExecutionError(
            f"{path}: {count} of the rows that --resume would show are means of {means} calls, and --iterations asks for "
            f"{iterations}. Go on with --iterations {others[0]}, or name another file."
        )


def _again(
    kept: Mapping[Case, list[Measurement]], progress: Callable[[Case], None] | None
) -> Iterator[Measurement]:
    for case, rows in kept.items():
        yield from rows
        _report(progress, case)


#: What is going on before the first call, and after the last.
STARTING, _ENDING = "while the ranks were being started", "while the ranks were being ended"


@dataclass
class _Going:
    """What a run is doing, so that an interruption can say where it came; in a ``with`` statement it does."""

    results: Results | None
    doing: str = STARTING

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt):
            advice = self.results.advice if self.results else ""
            raise ExecutionError(f"interrupted {self.doing}.{advice}") from None


def _measured(
    runner: "Runner",
    left: Sequence[Case],
    settings: Settings,
    predict: Predict,
    progress: Callable[[Case], None] | None,
    going: _Going,
) -> Iterator[Measurement]:
    for case in left:
        going.doing = f"in {case.sentence}"
        answers = runner.measure(case, iterations=settings.iterations)
        if not runner.leader:
            continue
        rows = rows_of(case, answers, settings, predict, runner.counter)
        unwritten = _written(going.results, rows)
        yield from rows
        _report(progress, case)
        if unwritten:
            raise unwritten


def _written(results: Results | None, rows: Sequence[Measurement]) -> ExecutionError | None:
    """Write the rows of a call, if they are kept; what keeps them from it, for they are shown all the same."""
    try:
        if results:
            results.append(rows)
    except ExecutionError as error:
        return error
    return None


class Runner(Protocol):
    """What can make calls: local ranks, or this rank among those of a launcher."""

    counter: str

    @property
    def leader(self) -> bool:
        """Whether answers come here."""

    def measure(self, case: Case, *, iterations: int = 1) -> dict[int, dict[str, Any]]:
        """Make a call."""

    def play(self, step: Step) -> dict[int, dict[str, Any]]:
        """Make all calls of a step."""


def _runner(world: int, settings: Settings) -> AbstractContextManager[Runner]:
    here = launch()
    if here is not None:
        resolve(here.host)  # before torch is loaded, which takes seconds
        from meshcost.execute.hosts import Hosts

        return Hosts(here, settings.timeout, settings.backend, settings.device, settings.fault)
    return Crew(
        world, settings.timeout, settings.host, settings.port, settings.backend, settings.device, fault=settings.fault
    )  # fmt: skip


def _done(results: Results, *, resume: bool) -> Mapping[Any, list[Measurement]]:
    if resume:
        found = complete(results.read())
        results.keep(row for rows in found.values() for row in rows)
        results.kept = sum(map(len, found.values()))
        return found
    if results.path.is_file() and results.path.stat().st_size:
        raise ExecutionError(f"{results.path}: has rows already. Go on with --resume, or name another file.")
    return {}


def _key(case: Case, settings: Settings) -> Key:
    algorithm = _named(case, settings)
    return Key(
        settings.backend, settings.device, algorithm, case.op, case.ranks, case.payload_bytes, case.members
    )


def _named(case: Case, settings: Settings) -> str:
    return settings.backend if case.algorithm == "native" else case.algorithm


def _report(progress: Callable[[Case], None] | None, case: Case) -> None:
    if progress is not None:
        progress(case)


def rows_of(
    case: Case, answers: Mapping[int, Mapping[str, Any]], settings: Settings, predict: Predict, counter: str
) -> list[Measurement]:
    """Turn what the ranks of a call report into rows; one row for all of them where they share an interface."""
    slowest = float(max(answer["seconds"] for answer in answers.values()))
    algbw = case.payload_bytes / slowest if slowest else 0.0
    chosen = max(
        answer.get("chosen", "") for answer in answers.values()
    )  # of NCCL's ranks only the first says it
    rows = []
    for position, rank in enumerate(case.members):
        answer = answers[rank]
        nccl = settings.backend == "nccl" and case.algorithm == "native"
        predicted = nccl_traffic(case, position, chosen) if nccl else predict(case, position)
        counted = counter != "none" and (not nccl or has_form(chosen))
        rows.append(
            Measurement(
                op=case.op,
                ranks=case.ranks,
                payload_bytes=case.payload_bytes,
                rank=rank,
                on=case.on,
                group=case.members,
                predicted_sent_bytes=predicted.sent_bytes,
                measured_sent_bytes=round(answer["sent"]) if counted else None,
                predicted_received_bytes=predicted.received_bytes,
                measured_received_bytes=round(answer["received"]) if counted else None,
                correct=answer["correct"],
                seconds=slowest,
                rank_seconds=answer["seconds"],
                algbw=algbw,
                busbw=algbw * float(busbw_factor(case.op, case.ranks)),
                algorithm=_named(case, settings),
                note=chosen,
                backend=settings.backend,
                counter=counter,
                device=settings.device,
                frame_bytes=predicted.sent_bytes - predicted.sent_payload,
                iterations=settings.iterations,
            )
        )
    return [_together(rows, answers)] if counter == "interface" and not launched() else rows


def _together(rows: Sequence[Measurement], answers: Mapping[int, Mapping[str, Any]]) -> Measurement:
    """One row for all ranks of a host: its interface saw what any of them sent, and each of them read it."""
    return replace(
        rows[0],
        rank=None,
        frame_bytes=sum(row.frame_bytes for row in rows),
        predicted_sent_bytes=sum(row.predicted_sent_bytes for row in rows),
        predicted_received_bytes=sum(row.predicted_received_bytes for row in rows),
        measured_sent_bytes=round(max(answer["sent"] for answer in answers.values())),
        measured_received_bytes=round(max(answer["received"] for answer in answers.values())),
        correct=all(row.correct for row in rows),
        rank_seconds=rows[0].seconds,
    )


def busbw_factor(op: str, ranks: int) -> Fraction:
    """Factor from algbw to busbw, as nccl-tests has it: 2 (n - 1) / n for an all-reduce, 1 for a broadcast.

    >>> busbw_factor("all_reduce", 4), busbw_factor("scatter", 4), busbw_factor("broadcast", 4)
    (Fraction(3, 2), Fraction(3, 4), Fraction(1, 1))
    """
    if op == "step":
        return Fraction(1)
    return Fraction(value(operation(op).busbw_factor, {S: 1, n: ranks}))


def verify_step(
    step: Step, settings: Settings, *, progress: Callable[[Case], None] | None = None
) -> Iterator[Measurement]:
    """Yield the rows of every kind of call of a step on every group, then one row for each rank of the whole step.

    Raises ExecutionError as ``verify`` does, and for a job that this machine cannot start.
    """
    if not launched():
        step.check()
    results, kept, left = kept_rows(step.kinds(), settings)
    yield from _again(kept, progress)
    whole = Case("step", tuple(range(step.world)), 0, "bill" if step.schedules else "native")
    with _Going(results) as going:
        with _runner(step.world, settings) as runner:
            yield from _measured(runner, left, settings, Case.predict, progress, going)
            going.doing = f"in the whole step over {step.world} ranks"
            answers = runner.play(step)
            going.doing = _ENDING
            counter, leader = runner.counter, runner.leader
        if leader:
            rows = rows_of(whole, answers, settings, lambda case, at: step.predicted(at), counter)
            yield from (row if row.rank is None else _billed(row, step) for row in rows)


def _billed(row: Measurement, step: Step) -> Measurement:
    assert row.rank is not None
    payload = sum(case.payload_bytes for case in step.cases(row.rank))
    return replace(row, payload_bytes=payload, billed_sent_bytes=step.billed(row.rank), iterations=1)


def failed(rows: Iterable[Measurement]) -> list[Measurement]:
    """Rows whose result was wrong, or whose prediction was."""
    return [row for row in rows if not row.passed]
