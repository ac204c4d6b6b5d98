"""What ``meshcost verify`` shows: predicted beside measured, call by call, and the verdict."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from meshcost.collectives.gloo import ENDS, FRAME_BYTES
from meshcost.errors import ExecutionError, MeshcostError, printable
from meshcost.measurement import Measurement, allowed_bytes
from meshcost.report import words
from meshcost.report.grid import Column, Grid
from meshcost.report.words import size

_WRONG, _RIGHT = "bold red", "green"
_HOW = {
    "tcp_info": "Bytes: of each rank's own TCP sockets, counted by the kernel (TCP_INFO), retransmissions left out.",
    "interface": "Bytes: of the network interface, for all ranks of this host together, because this kernel does not "
    "count per socket; headers and other traffic are in them, so 5 % are allowed.",
    "nvlink": "Bytes: of each rank's NVLinks (NVML), with whatever else used them, so 5 % are allowed; as: what NCCL chose.",
    "none": "Bytes: not counted, because this kernel offers no counter; only results and times were checked.",
}
#: Shares that are smaller are not told apart.
_LEAST_PERCENT = 0.001

_BILL_ITSELF = (
    "Executed with the bill's own algorithms: payload has to equal the bill, and frames come on top."
)
_AS_ALL_REDUCE = "Gloo runs a reduce-scatter as an all-reduce, so its payload may exceed the bill's."
_OWN_ALGORITHMS = "--schedules executes the bill's own algorithms."


@dataclass(frozen=True, slots=True)
class Verdict:
    """All rows of a run as a rich renderable: a table with one line for each call, and wrong ranks in full.

    A run that did not come to its end is not ``finished``; ``scaled`` says that the payloads of a job were, and its bill.
    """

    rows: Sequence[Measurement]
    notes: Sequence[str] = ()
    finished: bool = True
    scaled: bool = False
    ascii_only: bool | None = None
    each_rank: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield lines that fit the console."""
        signs = words.glyphs(options, self.ascii_only)
        yield from (Text(note, style="dim") for note in self.notes)
        timed = any(row.predicted_seconds for row in self.rows)
        placed = any(row.on for row in self.rows)
        grid = Grid(_columns(timed=timed, placed=placed), signs.line)
        for shown, groups in self._lines():
            cells = _cells(shown, groups, timed=timed, placed=placed)
            grid.row(*cells, style="" if shown.passed else _WRONG)
        yield from grid.fit(options.max_width)
        yield Text("")
        yield from self._bill(signs.line, options.max_width)
        yield self._verdict()
        yield from self._footnotes()

    def _lines(self) -> Iterator[tuple[Measurement, int]]:
        """The rank that is furthest off stands for its kind of call, in all groups; wrong ones each get a line."""
        for _, found in groupby(self.rows, key=lambda row: (row.key.kind, row.on)):
            calls = list(found)
            wrong = [row for row in calls if not row.passed]
            groups = len({row.group for row in calls})
            shown = calls if self.each_rank else wrong or [max(calls, key=_prominence)]
            yield from ((row, groups if len(shown) == 1 else 1) for row in shown)

    def _bill(self, rule: str, width: int) -> Iterator[Text]:
        """The whole step, rank by rank, beside the bill."""
        steps = [row for row in self.rows if row.billed_sent_bytes is not None]
        if not steps:
            return
        bill = "the bill, scaled" if self.scaled else "the bill"
        titles = ("rank of the step", bill, "sent as", "payload", "frames", "measured")
        grid = Grid([Column(title, "right" if title != "sent as" else "left") for title in titles], rule)
        for row in steps:
            payload = row.predicted_sent_bytes - row.frame_bytes
            figures = (row.billed_sent_bytes, payload, row.frame_bytes, row.measured_sent_bytes)
            billed, *rest = ("not counted" if x is None else f"{x:,}" for x in figures)
            grid.row(str(row.rank), billed, row.algorithm, *rest, style="" if row.passed else _WRONG)
        yield from grid.fit(width)
        if steps[0].algorithm == "bill":
            yield Text(_BILL_ITSELF, style="dim")
        elif steps[0].backend == "gloo":
            reduces = any(row.op == "reduce_scatter" for row in self.rows)
            yield Text(f"{_AS_ALL_REDUCE} {_OWN_ALGORITHMS}" if reduces else _OWN_ALGORITHMS, style="dim")
        yield Text("")

    def _verdict(self) -> Text:
        calls, wrong = len({row.key for row in self.rows}), [row for row in self.rows if not row.passed]
        counted = [row for row in self.rows if row.off_share is not None]
        if not self.rows:
            return Text("nothing was measured.", style=_WRONG)
        if wrong:
            bad = len({row.key for row in wrong})
            return Text(
                f"WRONG: {bad} of {words.plural(calls, 'call')} differ from the prediction.", style=_WRONG
            )
        most = max((abs(row.off_bytes or 0) for row in counted), default=0)
        said = (
            f", bytes within {size(most)} of the prediction on every rank"
            if most
            else ", every byte as predicted"
        )
        which = f"all {words.plural(calls, 'call')}" if calls > 1 else "the call"
        if not self.finished:
            which = f"{words.plural(calls, 'call')} before it stopped"
        verdict = f"{which} right: results checked{said if counted else ''}."
        return Text(verdict, style=_RIGHT if self.finished else "")

    def _footnotes(self) -> Iterator[Text]:
        counters = sorted({row.counter for row in self.rows})
        lines = [_HOW[counter] for counter in counters if counter in _HOW]
        if self.rows and not self.each_rank:
            lines.append(
                "A line shows the rank that is furthest off, or sends the most; --format json has all ranks."
            )
        if any(row.backend == "gloo" for row in self.rows):
            lines.append(f"Predicted bytes include the frames of Gloo, {FRAME_BYTES} B a message: {ENDS}.")
        lines.append(
            "time: of the slowest rank, the mean of its calls; algbw = payload / time; busbw as in nccl-tests. Times on one "
            "machine say nothing about a network."
        )
        yield from (Text(line, style="dim") for line in lines)


def _columns(*, timed: bool, placed: bool) -> list[Column]:
    return [
        Column("operation"),
        *([Column("on")] if placed else []),
        Column("as", drop=7),
        Column("ranks", "right"),
        Column("payload", "right"),
        Column("rank", "right", drop=6),
        Column("predicted", "right"),
        Column("measured", "right", style="bold"),
        Column("off", "right"),
        Column("result"),
        Column("time", "right", drop=3),
        *([Column("predicted time", "right", drop=5)] if timed else []),
        Column("algbw", "right", drop=4),
        Column("busbw", "right", drop=2),
    ]


def _cells(row: Measurement, groups: int, *, timed: bool, placed: bool) -> list[str]:
    predicted, measured = row.predicted_sent_bytes, row.measured_sent_bytes
    if measured is not None and row.off_bytes != measured - predicted:
        predicted, measured = row.predicted_received_bytes, row.measured_received_bytes
    return [
        row.op,
        *([f"{row.on}, {groups} groups" if groups > 1 else row.on] if placed else []),
        row.note or row.algorithm,
        str(row.ranks),
        size(row.payload_bytes),
        "all" if row.rank is None else str(row.rank),
        f"{predicted:,}",
        "not counted" if measured is None else f"{measured:,}",
        _off(row),
        _word(row),
        words.seconds(row.seconds),
        *([words.seconds(row.predicted_seconds)] if timed else []),
        _speed(row.algbw),
        _speed(row.busbw),
    ]


def _prominence(row: Measurement) -> tuple[int, int]:
    return abs(row.off_bytes or 0), row.predicted_sent_bytes


def _word(row: Measurement) -> str:
    if not row.correct:
        return "WRONG RESULT"
    return "right" if row.agrees else "WRONG BYTES"


def _off(row: Measurement) -> str:
    if row.off_bytes is None or row.off_share is None:
        return words.NOTHING
    if not row.off_bytes:
        return "0 B"
    return f"{row.off_bytes:+,} B ({_percent(100 * row.off_share)} %)"


def _percent(share: float) -> str:
    """Two digits, without a power of ten.

    >>> _percent(-100.0), _percent(0.0123), _percent(-1234.5), _percent(9.96), _percent(4e-7), _percent(-4e-7)
    ('-100', '+0.012', '-1,234', '+10', '< +0.001', '> -0.001')
    """
    if abs(share) < _LEAST_PERCENT:
        return f"< +{_LEAST_PERCENT}" if share > 0 else f"> -{_LEAST_PERCENT}"
    return f"{share:+.2g}" if abs(share) < 9.95 else f"{share:+,.0f}"


def _speed(bytes_per_second: float) -> str:
    return f"{size(round(bytes_per_second))}/s" if bytes_per_second else words.NOTHING


class Watched(NamedTuple):
    """What came of a run: its rows, and why it ended before its end, if it did."""

    rows: list[Measurement]
    trouble: MeshcostError | None = None


def as_dict(
    rows: Iterable[Measurement], notes: Sequence[str] = (), trouble: MeshcostError | None = None
) -> dict[str, Any]:
    """The rows as JSON values, with what was allowed and the verdict of each; ``errors`` say why it did not finish."""
    found: list[dict[str, Any]] = [
        row.as_dict()
        | {
            "allowed_bytes": allowed_bytes(row.predicted_sent_bytes, row.payload_bytes, row.counter),
            "passed": row.passed,
        }
        for row in rows
    ]
    return {
        "passed": trouble is None and bool(found) and all(row["passed"] for row in found),
        "notes": list(notes),
        "errors": list(trouble.problems) if trouble else [],
        "rows": found,
    }


def watch(
    run: Callable[[Callable[[Any], None]], Iterable[Measurement]],
    notes: Sequence[str],
    *,
    total: int,
    shown: bool = True,
) -> Watched:
    """Collect the rows of a run; ``run`` takes what it calls after each call. What was measured before an error is kept.

    On the error stream, the notes are said before anything starts, and a progress bar where a person looks.
    """
    rows: list[Measurement] = []
    try:
        _follow(run, rows, notes if shown else (), total=total, shown=shown)
    except MeshcostError as error:
        return Watched(rows, error)
    except KeyboardInterrupt:
        # Between two calls, or else the run itself has said in which.
        where = (
            f"after {rows[-1].op} over {rows[-1].ranks} ranks"
            if rows
            else "while the ranks were being started"
        )
        return Watched(rows, ExecutionError(f"interrupted {where}."))
    return Watched(rows)


def _follow(
    run: Callable[[Callable[[Any], None]], Iterable[Measurement]],
    rows: list[Measurement],
    notes: Sequence[str],
    *,
    total: int,
    shown: bool,
) -> None:
    """Add the rows of a run to those that are there, one by one: what came before an error has to stay."""
    console = Console(stderr=True, highlight=False)
    for note in notes:
        console.print(Text(printable(note)), style="dim", soft_wrap=not console.is_terminal)
    columns = (
        TextColumn("verify"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not (shown and console.is_terminal)
    ) as bar:
        task = bar.add_task("starting ranks", total=total)

        def advance(case: Any) -> None:
            bar.update(task, advance=1, description=f"{case.op} over {case.ranks} ranks")

        for row in run(advance):
            rows.append(row)  # noqa: PERF402
