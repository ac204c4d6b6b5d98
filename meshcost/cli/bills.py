"""Commands about one training step: its bill, the formula behind a line, the calls of a rank."""

from pathlib import Path
from typing import Annotated

import typer

from meshcost.cli.common import bill_of, bills_by_name, read_bill, show_or_dump, speeds_of
from meshcost.cli.options import (
    BillFile,
    BillFormat,
    By,
    CallFormat,
    Framework,
    OnCluster,
    PageFormat,
    choice,
    read_frameworks,
)
from meshcost.report.output import show, write, write_json


def analyze(  # noqa: PLR0913, PLR0917 - one argument for each option that a person may write
    job: BillFile,
    by: Annotated[
        By | None, choice(By, "--by", help="Add up by this, instead of the overview.", show_default=False)
    ] = None,
    stage: Annotated[int | None, typer.Option(help="Only what a rank of this pipeline stage calls.")] = None,
    rank: Annotated[int | None, typer.Option(help="Only what this rank calls.")] = None,
    framework: Framework = None,
    form: Annotated[BillFormat, choice(BillFormat, "--format", help="How it is written.")] = BillFormat.table,
    exact: Annotated[bool, typer.Option("--exact", help="Every digit of every byte in the tables.")] = False,
    cluster: OnCluster = None,
) -> None:
    """Print the bill of one training step: every collective, how often, on how much, and why."""
    ledger, asked = read_bill(job, framework, cluster)
    from meshcost.report.bill import Bill

    speeds = speeds_of(ledger, asked, cluster)
    bill, key = Bill(ledger, stage, rank, speeds), None if by is None else by.value
    if form is BillFormat.table:
        from meshcost.report.terminal import Shown

        show(Shown(bill, key, exact=exact))
    else:
        from meshcost.report import data

        if form is BillFormat.json:
            write_json(data.as_dict(bill, key))
        else:
            write([(data.as_csv if form is BillFormat.csv else data.as_markdown)(bill, key)])


def explain(
    job: BillFile,
    event: Annotated[
        str | None,
        typer.Argument(
            help="Number, name or the beginning of a name; without it, the list.", show_default=False
        ),
    ] = None,
    framework: Framework = None,
    form: Annotated[PageFormat, choice(PageFormat, "--format", help="How it is written.")] = PageFormat.table,
    cluster: OnCluster = None,
) -> None:
    """Explain one line of the bill: its formula, its symbols, the numbers put in, its source, and how it grows."""
    ledger, asked = read_bill(job, framework, cluster)
    from meshcost.report import data
    from meshcost.report.bill import Bill
    from meshcost.report.explain import as_dict, find
    from meshcost.report.explain_page import Listed, Page

    speeds = speeds_of(ledger, asked, cluster)
    if event is None:
        bill = Bill(ledger, cluster=speeds)
        show_or_dump(form, lambda: Listed(bill), lambda: data.event_rows(bill))
    else:
        found = find(ledger, event, asked, speeds)
        show_or_dump(form, lambda: Page(found), lambda: as_dict(found))


def compare(
    jobs: Annotated[
        list[Path],
        typer.Argument(
            metavar="JOB...", help="Job files or saved bills, the first to compare with.", show_default=False
        ),
    ],
    frameworks: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Each job under each of these, as textbook,torch.", callback=read_frameworks
        ),
    ] = "",
    stage: Annotated[int | None, typer.Option(help="What a rank of this pipeline stage calls.")] = None,
    form: Annotated[BillFormat, choice(BillFormat, "--format", help="How it is written.")] = BillFormat.table,
    cluster: OnCluster = None,
) -> None:
    """Show line by line what one bill has beyond another: two jobs, or one job under several frameworks."""
    named = bills_by_name(jobs, frameworks, cluster)
    from meshcost.report import comparison

    notes = [
        comparison.in_one_dtype(name, job.precision.weights, bill_of(job.in_one_dtype()))
        for name, _, job in named
        if job is not None
        and job.framework == "textbook"
        and job.precision.dtype("reduce") != job.precision.weights
    ]
    speeds = [speeds_of(ledger, job, cluster) for _, ledger, job in named]
    shown = comparison.compared([(name, ledger) for name, ledger, _ in named], stage, notes, speeds)
    match form:
        case BillFormat.table:
            show(shown)
        case BillFormat.json:
            write_json(comparison.as_dict(shown))
        case BillFormat.csv:
            write([comparison.as_csv(shown)])
        case BillFormat.markdown:
            write([comparison.as_markdown(shown)])


def calls(
    job: BillFile,
    rank: Annotated[int, typer.Option(help="The rank whose calls are listed.")],
    framework: Framework = None,
    form: Annotated[CallFormat, choice(CallFormat, "--format", help="How it is written.")] = CallFormat.table,
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
    ledger, _ = read_bill(job, framework)
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
