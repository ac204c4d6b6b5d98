"""Commands that run real processes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshcost.cli.common import read_job, runs_long, say, show_or_dump, terminated_as_interrupted
from meshcost.cli.options import JobFile, LogFormat, PageFormat, choice
from meshcost.errors import MeshcostError
from meshcost.report.output import show, write, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshcost.execute.recording import Recording
    from meshcost.job import Job


def verify(  # noqa: PLR0913, PLR0917 - one argument for each option that a person may write
    job: Annotated[
        Path | None,
        typer.Argument(metavar="[JOB]", help="Execute this job's step; without it, each operation."),
    ] = None,
    op: Annotated[str | None, typer.Option(help="Operations, as all_reduce,broadcast.")] = None,
    ranks: Annotated[str | None, typer.Option(help="Numbers of ranks, as 2,4.")] = None,
    size: Annotated[str | None, typer.Option(help="Payloads, as 1MiB,8MiB.")] = None,
    backend: Annotated[str, typer.Option(help="gloo, or nccl on GPUs.")] = "gloo",
    schedules: Annotated[bool, typer.Option("--schedules", help="Play the shelf's own schedules.")] = False,
    cap: Annotated[
        str | None, typer.Option(help="Largest payload of a job that is really sent, or none; else 4MiB.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Put the seconds of this cluster beside the measured ones.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the fitted speeds to this cluster file.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Append rows to this JSON-lines file as they come.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Skip what --results already has.")] = False,
    export: Annotated[str | None, typer.Option(help="Only print commands for nccl-tests or param.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one call, at most a day.")] = 60.0,
    iterations: Annotated[int, typer.Option(min=1, max=1000, help="Calls to average over.")] = 3,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where ranks meet; 0 is any free port.")] = 0,
    form: Annotated[PageFormat, choice(PageFormat, "--format", help="How it is written.")] = PageFormat.table,
) -> None:
    """Run collectives on real processes and compare the bytes that the kernel counts with the prediction."""
    runs_long()
    from meshcost.execute.command import Request
    from meshcost.report.verify import Verdict, as_dict, watch

    asked = Request(
        job,
        op,
        ranks,
        size,
        backend,
        cap,
        timeout,
        iterations,
        port,
        schedules,
        results,
        resume,
        save,
        cluster,
    )
    if export is not None:
        write(f"{line}\n" for line in asked.export(export))
        return
    notes = asked.notes
    with terminated_as_interrupted():
        rows, trouble = watch(asked.run, notes, total=asked.calls, shown=asked.leader)
    if trouble and (not rows or not asked.leader):
        raise trouble
    if not asked.leader:
        return
    try:
        saved = [] if trouble else asked.finish(rows)
    except MeshcostError as error:
        saved, trouble = [], error
    show_or_dump(
        form,
        lambda: Verdict(rows, saved, finished=trouble is None, scaled=asked.is_scaled),
        lambda: as_dict(rows, notes + saved, trouble),
    )
    if trouble:
        raise trouble
    if not all(row.passed for row in rows):
        raise typer.Exit(1)


def trace(  # noqa: PLR0913, PLR0917 - one argument for each option that a person may write
    job: JobFile,
    real: Annotated[
        bool, typer.Option("--real", help="Start a process for every rank, which talk over Gloo.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option(help="Only this rank; else one of each pipeline stage.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every rank.")] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            help="Steps to run; else as many as reach the one that all following are like.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        bool, typer.Option("--scale", help="A smaller model of the same family: fewer blocks, and narrower.")
    ] = False,
    form: Annotated[PageFormat, choice(PageFormat, "--format", help="How it is written.")] = PageFormat.table,
) -> None:
    """Run a job's step in PyTorch and compare each call that it makes with the prediction; exits 1 if one differs."""
    runs_long()
    if rank is not None and every:
        raise MeshcostError("trace: --rank asks for one rank and --all for every one. Leave one of them out.")
    from meshcost.execute.trace_check import TraceCheck
    from meshcost.report.trace import Held, watch

    check = TraceCheck(job, rank, every, steps, real, scale)
    model, total = check.job.setting.model.name, len(check.ranks)
    with terminated_as_interrupted():
        found = watch(check.run, total)
    show_or_dump(form, lambda: Held(model, check, found), lambda: check.as_dict(found))
    if not all(step.equal for step in found):
        raise typer.Exit(1)


def record(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND...",
            help="What trains: torchrun ... train.py, python train.py.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for rank-0.json and so on.")] = Path("recording"),
    step: Annotated[
        int | None,
        typer.Option(
            min=0, help="The step to keep; else the last that is like the one before it.", show_default=False
        ),
    ] = None,
    show: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Run nothing, and print this recording: a file, or the folder of one; may be repeated.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="JOB",
            help="Hold the calls against the bill of this job; exits 1 if one differs.",
            show_default=False,
        ),
    ] = None,
    form: Annotated[LogFormat, choice(LogFormat, "--format", help="How it is written.")] = LogFormat.log,
) -> None:
    """Run a training script, unchanged, and write down each communication call that its ranks make in a step."""
    runs_long()
    from meshcost.execute.crew import require_torch
    from meshcost.execute.record_script import ScriptFailed, record_command
    from meshcost.report.recorded import as_dict, logs, pages

    job = None if against is None else read_job(against, None)
    if show:
        if command or step is not None:
            raise MeshcostError(
                "record: --show runs nothing and keeps no step. Leave the command and --step out."
            )
        from meshcost.execute.recording_compare import read_recordings

        if job is not None:
            _hold({rank: x for path in show for rank, x in read_recordings(path).items()}, job, form)
            return
        found = [recording for path in show for _, recording in sorted(read_recordings(path).items())]
        if form is LogFormat.json:
            write_json(as_dict(found))
        else:
            write(logs(found))
        return
    require_torch("record watches PyTorch")
    try:
        recordings = record_command(command or [], out, step=step)
    except ScriptFailed as error:
        say(f"meshcost: {problem}" for problem in error.problems)
        raise typer.Exit(error.status) from None
    if job is not None:
        _hold(recordings, job, form)
    elif form is LogFormat.json:
        write_json(as_dict(recordings.values()))
    else:
        write(pages(recordings.values(), out))


def _hold(recordings: "Mapping[int, Recording]", job: "Job", form: LogFormat) -> None:
    """Hold recordings against the bill of a job; exits 1 if a call differs."""
    from meshcost.execute.record_check import RecordCheck
    from meshcost.report.trace import Held

    check = RecordCheck(job, recordings)
    if form is LogFormat.json:
        write_json(check.as_dict())
    else:
        show(Held(job.setting.model.name, check, check.steps))
    if not all(step.equal for step in check.steps):
        raise typer.Exit(1)
