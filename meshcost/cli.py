"""The command line: parse, call, print. Nothing is computed here.

Only typer is imported at the top: ``meshcost --help`` must not wait for SymPy.
"""

import gc
import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshcost.errors import MeshcostError
from meshcost.report.output import show, write, write_json

if TYPE_CHECKING:
    from meshcost.job import Job
    from meshcost.ledger import Ledger

app = typer.Typer(
    name="meshcost",
    help="What a way of parallelising a model costs in communication: an itemised bill of one training step.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class By(StrEnum):
    """What a bill is added up by."""

    event = "event"
    strategy = "strategy"
    op = "op"
    phase = "phase"
    axis = "axis"
    link = "link"
    stage = "stage"
    algorithm = "algorithm"


class BillFormat(StrEnum):
    """How a bill is written."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


class PageFormat(StrEnum):
    """How a page is written."""

    table = "table"
    json = "json"


class TextFormat(StrEnum):
    """How a teaching page is written."""

    text = "text"
    json = "json"


class CallFormat(StrEnum):
    """How a stream of calls is written."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


def _complete_models(incomplete: str) -> Iterator[str]:
    shelf = Path(__file__).parent / "models" / "catalogue"
    return (path.stem for path in sorted(shelf.glob("*.yaml")) if path.stem.startswith(incomplete))


_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")


def _complete_operations(incomplete: str) -> Iterator[str]:
    return (name for name in _OPERATIONS if name.startswith(incomplete))


def _print_version(wanted: bool) -> None:
    if wanted:
        from meshcost import __version__

        write([f"meshcost {__version__}\n"])
        raise typer.Exit


@app.callback()
def _front(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    pass


JobFile = Annotated[
    Path, typer.Argument(metavar="JOB", help="A job file; meshcost init writes one.", show_default=False)
]
Framework = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Whose calls: textbook is what the papers say.", show_default=False),
]


@app.command()
def analyze(  # noqa: PLR0913, PLR0917 - one argument for each option that a person may write
    job: JobFile,
    by: Annotated[
        By | None, typer.Option(help="Add up by this, instead of the overview.", show_default=False)
    ] = None,
    stage: Annotated[int | None, typer.Option(help="Only what a rank of this pipeline stage calls.")] = None,
    rank: Annotated[int | None, typer.Option(help="Only what this rank calls.")] = None,
    framework: Framework = None,
    form: Annotated[BillFormat, typer.Option("--format", help="How it is written.")] = BillFormat.table,
    exact: Annotated[bool, typer.Option("--exact", help="Every digit of every byte in the tables.")] = False,
    cluster: Annotated[
        str | None, typer.Option(help="Seconds on this cluster: a name, or a file of verify --save.")
    ] = None,
) -> None:
    """Print the bill of one training step: every collective, how often, on how much, and why."""
    found = _job(job, framework, cluster)
    from meshcost.report.bill import Bill

    bill, key = Bill(_bill_of(found), stage, rank, found.cluster), None if by is None else by.value
    if form is BillFormat.table:
        from meshcost.report.terminal import Shown

        show(Shown(bill, key, exact=exact))
    else:
        from meshcost.report import data

        if form is BillFormat.json:
            write_json(data.as_dict(bill, key))
        else:
            write([(data.as_csv if form is BillFormat.csv else data.as_markdown)(bill, key)])


@app.command()
def explain(
    job: JobFile,
    event: Annotated[
        str | None,
        typer.Argument(
            help="Number, name or the beginning of a name; without it, the list.", show_default=False
        ),
    ] = None,
    framework: Framework = None,
    form: Annotated[PageFormat, typer.Option("--format", help="How it is written.")] = PageFormat.table,
) -> None:
    """Explain one line of the bill: its formula, its symbols, the numbers put in, its source, and how it grows."""
    asked = _job(job, framework)
    from meshcost.report import data
    from meshcost.report.bill import Bill
    from meshcost.report.explain import as_dict, find
    from meshcost.report.explain_page import Listed, Page

    ledger = _bill_of(asked)
    if event is None:
        bill = Bill(ledger)
        _show_or_dump(form, lambda: Listed(bill), lambda: data.event_rows(bill))
    else:
        found = find(ledger, event, asked)
        _show_or_dump(form, lambda: Page(found), lambda: as_dict(found))


@app.command()
def collectives(
    op: Annotated[
        str | None,
        typer.Argument(
            help="An operation; without it, all of them.",
            autocompletion=_complete_operations,
            show_default=False,
        ),
    ] = None,
    ranks: Annotated[int, typer.Option(help="How many ranks are drawn, 2 to 16.")] = 4,
    form: Annotated[TextFormat, typer.Option("--format", help="How it is written.")] = TextFormat.text,
) -> None:
    """Show what each collective operation does, what it costs, and who uses it."""
    _light()
    from meshcost.report.collectives import as_dict, overview, page

    if form is TextFormat.json:
        write_json(as_dict(op, ranks))
    else:
        show(overview() if op is None else page(op, ranks))


@app.command()
def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|config.json]",
            help="A model of the catalogue or a Hugging Face config.json; without it, the catalogue.",
            autocompletion=_complete_models,
            show_default=False,
        ),
    ] = None,
    form: Annotated[PageFormat, typer.Option("--format", help="How it is written.")] = PageFormat.table,
) -> None:
    """Show the catalogue of models, or the weights of one model by group and by block."""
    _light()
    from meshcost.models import read_model
    from meshcost.report.models import Card, Catalogue, card, cards

    if name is None:
        _show_or_dump(form, Catalogue, cards)
    else:
        model = read_model(name)
        _show_or_dump(form, lambda: Card(model), lambda: card(model))


@app.command()
def calls(
    job: JobFile,
    rank: Annotated[int, typer.Option(help="The rank whose calls are listed.")],
    framework: Framework = None,
    form: Annotated[CallFormat, typer.Option("--format", help="How it is written.")] = CallFormat.table,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="At most so many calls, 0 for all. By default 200 in a table, else all.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the exact calls that one rank makes in a step, in order."""
    ledger = _ledger(job, framework)
    from meshcost.report import calls as report

    ledger.mesh.check(rank)
    if form is CallFormat.table:
        show(report.Calls(ledger, rank, report.FIRST if limit is None else limit or None))
        return
    writers = {
        CallFormat.json: report.json_array,
        CallFormat.jsonl: report.json_lines,
        CallFormat.csv: report.csv_lines,
    }
    write(writers[form](report.chosen(ledger, rank, limit or None)))


@app.command()
def verify(  # noqa: PLR0913, PLR0917 - one argument for each option that a person may write
    job: Annotated[
        Path | None,
        typer.Argument(metavar="[JOB]", help="Execute this job's step; without it, each operation."),
    ] = None,
    op: Annotated[str, typer.Option(help="Operations, as all_reduce,broadcast.")] = "",
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, as 2,4.")] = "",
    size: Annotated[str, typer.Option(help="Payloads, as 1MiB,8MiB.")] = "",
    backend: Annotated[str, typer.Option(help="gloo, or nccl on GPUs.")] = "gloo",
    schedules: Annotated[bool, typer.Option("--schedules", help="Play the shelf's own schedules.")] = False,
    cap: Annotated[str, typer.Option(help="Largest payload of a job that is really sent, or none.")] = "4MiB",
    cluster: Annotated[
        str, typer.Option(help="Put the seconds of this cluster beside the measured ones.")
    ] = "",
    save: Annotated[Path | None, typer.Option(help="Write the fitted speeds to this cluster file.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Append rows to this JSON-lines file as they come.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Skip what --results already has.")] = False,
    export: Annotated[str, typer.Option(help="Only print commands for nccl-tests or param.")] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one call.")] = 60.0,
    iterations: Annotated[int, typer.Option(min=1, max=1000, help="Calls to average over.")] = 3,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where ranks meet; 0 is any free port.")] = 0,
    form: Annotated[PageFormat, typer.Option("--format", help="How it is written.")] = PageFormat.table,
) -> None:
    """Run collectives on real processes and compare the bytes that the kernel counts with the prediction."""
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
    if export:
        write(f"{line}\n" for line in asked.export(export))
        return
    notes = asked.notes
    rows = watch(asked.run, notes, total=asked.calls, shown=asked.leader)
    if not asked.leader:
        return
    saved = asked.finish(rows)
    _show_or_dump(form, lambda: Verdict(rows, saved), lambda: as_dict(rows, notes + saved))
    if not all(row.passed for row in rows):
        raise typer.Exit(1)


@app.command()
def init(
    path: Annotated[str, typer.Argument(help="Where to write it; - prints it.")] = "job.yaml",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
) -> None:
    """Write a commented job file to start from."""
    from meshcost.report.starter import job_text

    if path == "-":
        write([job_text("job.yaml")])
        return
    try:
        with Path(path).open("w" if force else "x", encoding="utf-8") as file:
            file.write(job_text(path if path.isprintable() else "JOB"))
    except FileExistsError:
        raise MeshcostError(f"{path}: exists already. Choose another name, or --force.") from None
    except (OSError, ValueError) as error:
        raise MeshcostError(
            f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}."
        ) from None
    write([f"{path} is written. Next: meshcost analyze {path}\n"])


@app.command()
def schema() -> None:
    """Print the JSON schema of job files, for editors."""
    _light()
    from meshcost.job import Job

    write_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **Job.model_json_schema()})


def _ledger(path: Path, framework: str | None) -> "Ledger":
    return _bill_of(_job(path, framework))


def _bill_of(job: "Job") -> "Ledger":
    from meshcost.job import analyze as bill_of

    return bill_of(job)


def _job(path: Path, framework: str | None, cluster: str | None = None) -> "Job":
    _light()
    from meshcost.job import load

    asked = {"framework": framework, "cluster": cluster}
    try:
        return load(path, **{name: value for name, value in asked.items() if value is not None})
    except MeshcostError as error:
        _refuse(error.problems)
        raise typer.Exit(2) from None


def _light() -> None:
    """Spare a short process the search for garbage: it costs a tenth of the imports that follow."""
    gc.disable()


def _show_or_dump(form: PageFormat, page: Any, plain: Any) -> None:
    if form is PageFormat.json:
        write_json(plain())
    else:
        show(page())


def _refuse(problems: Iterable[str]) -> None:
    for problem in problems:
        text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in problem)
        print(text, file=sys.stderr)  # noqa: T201 - this is where errors are said


def main() -> None:
    """Run the command line; exits 0, or 2 after one sentence for each problem."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name may hold letters that the terminal lacks
    try:
        app()
    except MeshcostError as error:
        _refuse(f"meshcost: {problem}" for problem in error.problems)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
