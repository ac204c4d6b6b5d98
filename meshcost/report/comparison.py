"""Bills beside each other: what one does beyond another, line by line, and what that costs on the wire."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from meshcost.clusters import Cluster
from meshcost.difference import Kind, Tally
from meshcost.errors import LedgerError
from meshcost.event import Totals
from meshcost.ledger import Ledger
from meshcost.report import words
from meshcost.report.bill import Bill
from meshcost.report.data import csv_text, markdown_text
from meshcost.report.grid import Column, Grid
from meshcost.report.words import Glyphs, size


class Line(NamedTuple):
    """One kind of call in all bills: how often and how much in each, and whether all agree."""

    kind: Kind
    tallies: tuple[Tally, ...]
    alike: bool

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is called, in any bill."""
        return tuple(dict.fromkeys(why for one in self.tallies for why in one.reasons))

    @property
    def note(self) -> str:
        """Why bytes differ, where calls and buffers do not: groups of other sizes, or other ways to send; else nothing."""
        first, *others = self.tallies
        if self.alike or any(one.buffers != first.buffers for one in others):
            return ""
        sizes = [", ".join(map(str, one.group_sizes)) for one in self.tallies]
        groups = f"groups of {' and '.join(sizes)}" if len(set(sizes)) > 1 else "sent another way"
        return f"same calls and buffers, {groups}"

    @property
    def beyond(self) -> tuple[int, ...]:
        """Bytes that each bill sends beyond the first."""
        first, *others = (one.sent_bytes for one in self.tallies)
        return tuple(other - first for other in others)


@dataclass(frozen=True)
class Comparison:
    """Two bills or more, by name, each as one of its ranks pays it.

    That is a rank of ``stage``; without it, of the stage that sends most in the first bill, or, where bills have different
    numbers of stages, of each one's own busiest stage. ``clusters`` has one for each bill, or nothing: its seconds are
    counted on it. Raises LedgerError for a stage that does not exist.
    """

    bills: tuple[tuple[str, Ledger], ...]
    stage: int | None = None
    notes: tuple[str, ...] = ()
    clusters: tuple[Cluster | None, ...] = ()

    @cached_property
    def stages(self) -> tuple[int, ...]:
        """The stage that is looked at in each bill."""
        ledgers = [ledger for _, ledger in self.bills]
        if self.stage is None and len({ledger.mesh.stages for ledger in ledgers}) > 1:
            return tuple(ledger.busiest_stage for ledger in ledgers)
        stage = ledgers[0].busiest_stage if self.stage is None else self.stage
        for name, ledger in self.bills:
            try:
                ledger.mesh.check_stage(stage)
            except LedgerError as error:
                raise error.located(name) from None
        return (stage,) * len(ledgers)

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """Every kind of call, those that differ most first."""
        kinds = [ledger.kinds(stage) for (_, ledger), stage in zip(self.bills, self.stages, strict=True)]
        lines = []
        for kind in {kind: None for one in kinds for kind in one}:
            tallies = tuple(one.get(kind, Tally()) for one in kinds)
            alike = all(one.alike(tallies[0]) for one in tallies)
            lines.append(Line(kind, tallies, alike))
        return tuple(sorted(lines, key=lambda line: (line.alike, -max(map(abs, line.beyond), default=0))))

    @property
    def totals(self) -> tuple[Totals, ...]:
        """What the rank that is looked at pays in each bill."""
        return tuple(
            ledger.by_stage[stage] for (_, ledger), stage in zip(self.bills, self.stages, strict=True)
        )

    @property
    def busiest(self) -> tuple[Totals, ...]:
        """What the busiest rank pays in each bill."""
        return tuple(ledger.totals for _, ledger in self.bills)

    @cached_property
    def timed(self) -> tuple[Bill, ...]:
        """Each bill with the cluster that its seconds are counted on."""
        clusters = self.clusters or (None,) * len(self.bills)
        return tuple(
            Bill(ledger, cluster=cluster) for (_, ledger), cluster in zip(self.bills, clusters, strict=True)
        )

    @property
    def caveats(self) -> tuple[str, ...]:
        """What has to stand beside the seconds."""
        return tuple(dict.fromkeys(bill.timed_on["caveat"] for bill in self.timed if bill.timed))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield a table of what differs."""
        signs, width = words.glyphs(options), options.max_width
        for (name, _), bill, stage, totals in zip(
            self.bills, self.timed, self.stages, self.totals, strict=True
        ):
            yield Text(_heading(name, bill, stage, totals, signs))
        yield Text("")
        if all(line.alike for line in self.lines):
            yield Text(
                "They are alike: every kind of call as often, on the same buffers, for as many bytes sent.",
                style="bold",
            )
            return
        yield from _grid(self, signs).fit(width)
        yield Text("")
        yield Text(
            f"Calls and bytes sent by one rank in one step; the difference is to {self.bills[0][0]}. "
            "--format json has every line.",
            style="dim",
        )
        yield from (Text(note, style="dim") for note in (*self.caveats, *self.notes))


def compared(
    bills: Sequence[tuple[str, Ledger]],
    stage: int | None = None,
    notes: Sequence[str] = (),
    clusters: Sequence[Cluster | None] = (),
) -> Comparison:
    """Put bills beside each other. Raises LedgerError for fewer than two, or for a stage that one does not have."""
    if len(bills) < 2:
        raise LedgerError("one bill has nothing beside it: name two jobs, or --frameworks textbook,torch.")
    comparison = Comparison(tuple(bills), stage, tuple(notes), tuple(clusters))
    assert comparison.stages
    return comparison


def in_one_dtype(name: str, dtype: str, bill: Ledger) -> str:
    """Say what a bill comes to where papers' formulas count elements, not bytes of several data types."""
    return f"{name} with every element in {dtype}, as the formulas of the papers count: {size(bill.totals.sent_bytes)}."


def _heading(name: str, bill: Bill, stage: int, totals: Totals, signs: Glyphs) -> str:
    ledger = bill.ledger
    world = words.product(dict(ledger.mesh.axes), signs)
    gpus = words.plural(ledger.mesh.world_size, "GPU") + (f" = {world}" if world else "")
    which = f"a rank of stage {stage}" if ledger.mesh.stages > 1 else "the busiest rank"
    model, framework = ledger.about.get("model") or "a model", ledger.about.get("framework", "textbook")
    sends = f"sends {size(totals.sent_bytes)} in {words.plural(totals.calls, 'call')}"
    return f"{name}: {model}, {framework}, {gpus}; {which} {sends}{_time(bill, stage)}"


def _time(bill: Bill, stage: int) -> str:
    """How long a rank of the stage communicates, and one of the slowest stage if that is another one."""
    if not bill.timed:
        return ""
    times, slowest = bill.stage_seconds, bill.slowest_stage or 0
    slower = f" (stage {slowest}: {words.seconds(times[slowest])})" if times[slowest] > times[stage] else ""
    return f", {words.seconds(times[stage])} of communication{slower} on {bill.timed_on['cluster']}"


def _grid(shown: Comparison, signs: Glyphs) -> Grid:
    names = [name for name, _ in shown.bills]
    figures = [(Column("calls", "right", drop=2), Column(name, "right", style="bold")) for name in names]
    gaps = [Column("difference" if len(names) == 2 else f"{name} beyond", "right") for name in names[1:]]
    head = [Column("operation"), Column("on", least=10), Column("phase"), Column("why", least=26, drop=3)]
    grid = Grid([*head, *(column for pair in figures for column in pair), *gaps], signs.line)
    for line in shown.lines:
        if not line.alike:
            place = (
                line.kind.op,
                f" {signs.times} ".join(line.kind.axes),
                line.kind.phase,
                _why(line),
            )
            grid.row(*place, *_figures(line.tallies, line.beyond))
    alike = [[line.tallies[i] for line in shown.lines if line.alike] for i in range(len(names))]
    if alike[0]:
        grid.row(
            "alike in all",
            "",
            "",
            "",
            *_figures([_sum(each) for each in alike], [0] * len(gaps)),
            style="dim",
        )
    grid.line()
    totals = shown.totals
    grid.row("one rank", "", "", "", *_figures(totals, _beyond(totals)), style="bold")
    if shown.busiest != totals:
        grid.row("busiest rank", "", "", "", *_figures(shown.busiest, _beyond(shown.busiest)))
    return grid


def _why(line: Line) -> str:
    """What it is for, in few words: first what only one bill gives as a reason, and how many more there are.

    Where only the bytes differ, it says why they do.
    """
    if line.note:
        return line.note
    shared = [why for why in line.reasons if all(why in one.reasons for one in line.tallies)]
    own = [why for why in line.reasons if why not in shared]
    first, *others = own + shared
    return f"{first} (and {words.plural(len(others), 'more reason')})" if others else first


def _figures(each: Sequence[Tally | Totals], beyond: Sequence[int]) -> Iterator[str]:
    for one in each:
        yield f"{one.calls:,}" if one.calls else words.NOTHING
        yield size(one.sent_bytes)
    for gap in beyond:
        yield f"{'+' if gap > 0 else '-'} {size(abs(gap))}" if gap else words.NOTHING


def _sum(each: Sequence[Tally]) -> Tally:
    return Tally(calls=sum(one.calls for one in each), sent_bytes=sum(one.sent_bytes for one in each))


def _beyond(each: Sequence[Totals]) -> list[int]:
    return [one.sent_bytes - each[0].sent_bytes for one in each[1:]]


def as_dict(shown: Comparison) -> dict[str, Any]:
    """The comparison as JSON values, every line of it."""
    return {
        "bills": [
            {
                "name": name,
                "about": dict(ledger.about),
                "world_size": ledger.mesh.world_size,
                "stage": stage,
                "totals": totals.as_dict(),
                "busiest_rank": ledger.totals.as_dict(),
                **_seconds(bill, stage),
            }
            for (name, ledger), bill, stage, totals in zip(
                shown.bills, shown.timed, shown.stages, shown.totals, strict=True
            )
        ],
        "notes": list(shown.notes),
        "lines": [
            {
                **line.kind._asdict(),
                "alike": line.alike,
                "why": list(line.reasons),
                "calls": [one.calls for one in line.tallies],
                "payload_bytes": [one.payload_bytes for one in line.tallies],
                "sent_bytes": [one.sent_bytes for one in line.tallies],
                "difference_bytes": list(line.beyond),
            }
            for line in shown.lines
        ],
    }


def _seconds(bill: Bill, stage: int) -> dict[str, Any]:
    if not bill.timed:
        return {}
    slowest = bill.slowest_stage or 0
    times = {"total": bill.stage_seconds[stage], "slowest_stage": slowest}
    return {"seconds": bill.timed_on | times | {"slowest_total": bill.stage_seconds[slowest]}}


def rows(shown: Comparison) -> list[dict[str, Any]]:
    """One row for each line, with columns for each bill by its name, and the totals of the busiest rank in the last."""
    found = [
        {
            "op": line.kind.op,
            "axes": " ".join(line.kind.axes),
            "phase": line.kind.phase,
            "why": " / ".join(line.reasons),  # a reason may hold any other sign
            **_named(shown, line.tallies, line.beyond),
        }
        for line in shown.lines
    ]
    last = {"op": "busiest rank", "axes": "", "phase": "", "why": ""}
    return [*found, last | _named(shown, shown.busiest, _beyond(shown.busiest))]


def _named(shown: Comparison, each: Sequence[Tally | Totals], beyond: Sequence[int]) -> dict[str, int]:
    names = [name for name, _ in shown.bills]
    calls = {f"calls {name}": one.calls for name, one in zip(names, each, strict=True)}
    sent = {f"sent_bytes {name}": one.sent_bytes for name, one in zip(names, each, strict=True)}
    return (
        calls | sent | {f"difference_bytes {name}": gap for name, gap in zip(names[1:], beyond, strict=True)}
    )


def as_csv(shown: Comparison) -> str:
    """Every line as CSV."""
    table = rows(shown)
    return csv_text(tuple(table[0]), table)


def as_markdown(shown: Comparison) -> str:
    """Every line as a Markdown table."""
    table = rows(shown)
    return markdown_text(tuple(table[0]), table)
