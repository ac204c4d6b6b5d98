"""The calls of one rank, in order, as they stream out of a ledger: a table to look at, JSON and CSV to work with."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from meshcost.ledger import Ledger
from meshcost.report import words
from meshcost.report.grid import Column, Grid
from meshcost.report.words import size
from meshcost.unroll import Call

COLUMNS = (
    "op", "ranks", "in_bytes", "out_bytes", "dtype", "phase", "strategy", "why", "unit", "micro_batch", "tag",
)  # fmt: skip
#: Calls that a table shows unless somebody asks for more.
FIRST = 200


def as_dict(call: Call) -> dict[str, Any]:
    """One call as JSON values."""
    return {name: list(call.ranks) if name == "ranks" else getattr(call, name) for name in COLUMNS}


def chosen(ledger: Ledger, rank: int, limit: int | None) -> Iterator[Call]:
    """The first ``limit`` calls of a rank, or all. Raises LedgerError at once for a rank that does not exist."""
    ledger.mesh.check(rank)
    return islice(ledger.calls(rank), limit)


def json_lines(calls: Iterable[Call]) -> Iterator[str]:
    """One JSON object in each line."""
    for call in calls:
        yield json.dumps(as_dict(call)) + "\n"


def json_array(calls: Iterable[Call]) -> Iterator[str]:
    """One JSON array, written piece by piece: it may be longer than memory holds."""
    yield "["
    separator = "\n"
    for call in calls:
        yield separator + json.dumps(as_dict(call))
        separator = ",\n"
    yield "\n]\n"


def csv_lines(calls: Iterable[Call]) -> Iterator[str]:
    """CSV with a header; ranks are separated by blanks."""
    yield _csv_line(COLUMNS)
    for call in calls:
        row: Mapping[str, Any] = as_dict(call) | {"ranks": " ".join(map(str, call.ranks))}
        yield _csv_line(row[name] for name in COLUMNS)


def _csv_line(cells: Iterable[Any]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerow(cells)
    return file.getvalue()


def number_of_calls(ledger: Ledger, rank: int) -> int:
    """Count the calls of a rank without unrolling them."""
    return sum(event.calls for event in ledger.at_stage(ledger.mesh.stage(rank)))


@dataclass(frozen=True, slots=True)
class Calls:
    """The first ``limit`` calls of a rank (None: all) as a rich renderable; equal calls in a row are one line."""

    ledger: Ledger
    rank: int
    limit: int | None = FIRST

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield lines that fit the console."""
        signs, mesh = words.glyphs(options), self.ledger.mesh
        place = ", ".join(
            f"{axis} {at:,} of {mesh.size(axis):,}"
            for axis, at in mesh.coordinates(self.rank).items()
            if mesh.size(axis) > 1
        )
        every = number_of_calls(self.ledger, self.rank)
        yield Text.assemble(
            (f"Rank {self.rank}", "bold"), f" ({place})" if place else "", f": {every:,} calls in one step"
        )
        if not every:
            return
        yield Text("")
        grid = Grid(_COLUMNS, signs.line)
        number = 0
        for call, run in groupby(chosen(self.ledger, self.rank, self.limit)):
            times = len(list(run))
            grid.row(*_cells(number + 1, call, times, signs))
            number += times
        yield from grid.fit(options.max_width)
        if number < every:
            yield Text("")
            yield Text(
                f"... and {every - number:,} more: --limit 0 shows all, --format jsonl streams them.",
                style="dim",
            )


_COLUMNS = (
    Column("#", "right", style="dim"),
    Column("operation", style="bold"),
    Column("ranks", least=10),
    Column("in", "right"),
    Column("out", "right"),
    Column("dtype", drop=2),
    Column("phase", drop=4),
    Column("micro", "right", drop=4),
    Column("unit", drop=3),
    Column("strategy", drop=1),
    Column("why", least=22),
)


def _cells(number: int, call: Call, times: int, signs: words.Glyphs) -> list[str]:
    op = call.op if times == 1 else f"{call.op} {signs.times}{times}"
    micro_batch = "" if call.micro_batch is None else str(call.micro_batch)
    where = (call.dtype, call.phase, micro_batch, call.unit, call.strategy, call.why)
    ranks = " -> ".join(map(str, call.ranks)) if call.op in ("send", "recv") else words.runs(call.ranks)
    return [f"{number:,}", op, ranks, size(call.in_bytes), size(call.out_bytes), *where]
