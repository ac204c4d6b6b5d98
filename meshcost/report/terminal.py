"""The bill in a terminal: what a step costs at a glance, then every kind of call.

``bill(ledger)`` is a rich renderable. It fits any width from 60 columns on and keeps to ASCII where the terminal has no
more.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from meshcost.event import BETWEEN, CLUSTER, INSIDE, Totals
from meshcost.ledger import Ledger
from meshcost.report import words
from meshcost.report.bill import Bill, Line
from meshcost.report.grid import Column, Grid
from meshcost.report.words import Glyphs, size

SENT, LEAVING = CLUSTER
_HEAD, _STRATEGY, _TOTAL = "bold", "bold cyan", "bold"
_INSIDE, _BETWEEN = "green", "yellow"
_LONGEST_BAR = 48
_PHASES = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}
_WIDE, _MIDDLE = 120, 96


def bill(ledger: Ledger, *, ascii_only: bool | None = None, exact: bool = False) -> "Shown":
    """Show a whole ledger. ``ascii_only`` None asks the console; ``exact`` writes every digit of every byte."""
    return Shown(Bill(ledger), ascii_only=ascii_only, exact=exact)


@dataclass(frozen=True, slots=True)
class Shown:
    """A bill as a rich renderable: the overview and all events, or the sums ``by`` something."""

    bill: Bill
    by: str | None = None
    ascii_only: bool | None = None
    exact: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield lines that fit the console."""
        signs, width = words.glyphs(options, self.ascii_only), options.max_width
        yield from header(self.bill, signs)
        if not self.bill.totals.calls and not self.bill.lines:
            yield Text("")
            yield Text(f"One step, {self.bill.payer}: nothing is communicated.", style=_HEAD)
            return
        if self.by is None:
            yield Text("")
            yield from _summary(self.bill, signs, width)
        yield Text("")
        if self.by in (None, "event"):
            yield from _events(self.bill, signs, width, exact=self.exact)
            yield Text("")
            yield from _closing(self.bill)
        else:
            yield from _groups(self.bill, str(self.by), signs, width, exact=self.exact)


def header(bill: Bill, signs: Glyphs) -> Iterator[Text]:
    """Say what is trained, where and on what."""
    about, mesh = bill.ledger.about, bill.ledger.mesh
    line = Text()
    line.append(str(about.get("model") or "a model without a name"), _HEAD)
    if "weights" in about:
        line.append(f"  {words.human_count(about['weights'])} weights")
    line.append(f"  {about.get('framework', 'textbook')}", "dim")
    yield line
    world = words.product(dict(mesh.axes), signs)
    gpus = words.plural(mesh.world_size, "GPU") + (f" = {world}" if world else "")
    yield Text(f"{gpus}  on {_nodes(bill)}")
    if mesh.expert:
        sizes = words.product(dict(mesh.expert), signs)
        yield Text(f"experts, in each stage: {sizes or 'one group'}")
    if "global_batch" in about:
        yield Text(_batch(about))


def _nodes(bill: Bill) -> str:
    mesh = bill.ledger.mesh
    cluster = bill.speeds.name if bill.speeds else bill.ledger.about.get("cluster")
    nodes = -(-mesh.world_size // mesh.gpus_per_node)
    room = f"{words.plural(nodes, 'node')} of {words.plural(mesh.gpus_per_node, 'GPU')}"
    return f"{room} ({cluster})" if cluster else f"{room} (assumed: the job names no cluster)"


def _batch(about: Mapping[str, int]) -> str:
    micro_batches = words.plural(about["micro_batches"], "micro-batch", "micro-batches")
    return (
        f"{words.plural(about['global_batch'], 'sequence')} of {words.plural(about['sequence'], 'token')} a step, "
        f"{micro_batches} of {about['micro_batch']:,} on each rank"
    )


def _summary(bill: Bill, signs: Glyphs, width: int) -> Iterator[Text]:
    totals = bill.totals
    line = Text(f"One step, {bill.payer}: ")
    line.append(f"sends {size(totals.sent_bytes)}", _HEAD)
    line.append(f" in {words.plural(totals.calls, 'call')}")
    if bill.timed:
        line.append(f", {words.seconds(bill.total_seconds)} of communication with nothing hidden")
    yield line
    if slower := _slower(bill):
        yield Text(f"  {slower}", _HEAD)
    if totals.sent_bytes:
        yield from _bars(bill, signs, width)
        yield from _legend(totals, signs)
    yield from _spread(bill)
    yield from _cluster(bill)


def _slower(bill: Bill) -> str:
    """Say whose communication takes longest, where that is not the rank whose totals are shown."""
    slowest = bill.slowest_stage
    if not bill.whole or slowest in (None, bill.payer_stage):
        return ""
    time, sent = bill.stage_seconds[slowest], bill.ledger.by_stage[slowest].sent_bytes
    return f"The slowest rank is one of stage {slowest}: {words.seconds(time)}, though it sends {size(sent)}."


def _bars(bill: Bill, signs: Glyphs, width: int) -> Iterator[Text]:
    groups = {name: sums for name, sums in bill.groups("strategy").items() if sums.calls}
    most, whole = max(x.sent_bytes for x in groups.values()), bill.totals.sent_bytes
    name_width = max(map(len, groups))
    room = max(8, min(_LONGEST_BAR, width - name_width - 24))
    for name, sums in groups.items():
        inside = _cells(sums.sent_bytes - sums.inter_node_bytes, most, room)
        between = _cells(sums.inter_node_bytes, most, room)
        line = Text(f"  {name:<{name_width}}  ", no_wrap=True)
        line.append(signs.inside * inside, _INSIDE)
        line.append(signs.between * between, _BETWEEN)
        line.append(" " * max(0, room - inside - between))
        line.append(f"  {size(sums.sent_bytes):>8}  {words.share(sums.sent_bytes, whole):>7}")
        yield line


def _cells(part: int, most: int, room: int) -> int:
    return max(1, round(room * part / most)) if part * 1000 > most else 0


def _legend(totals: Totals, signs: Glyphs) -> Iterator[Text]:
    line = Text("  ")
    for sign, style, where, part in (
        (signs.inside, _INSIDE, INSIDE, totals.intra_node_bytes),
        (signs.between, _BETWEEN, BETWEEN, totals.inter_node_bytes),
    ):
        if part:
            line.append(sign, style)
            line.append(f" {where} {size(part)} ({words.share(part, totals.sent_bytes)})   ")
    line.rstrip()
    yield line


def _spread(bill: Bill) -> Iterator[Text]:
    """Say what a rank of each stage sends, stages that send alike together."""
    sent = [sums.sent_bytes for sums in bill.ledger.by_stage]
    if len(sent) == 1 or not bill.whole:
        return
    alike: dict[int, list[int]] = {}
    for stage, number in enumerate(sent):
        alike.setdefault(number, []).append(stage)
    if len(alike) <= 4:
        parts = [f"{words.runs(tuple(stages))}: {size(number)}" for number, stages in alike.items()]
        yield Text(f"  a rank of each stage sends   {'   '.join(parts)}")
    else:
        low, high = min(sent), max(sent)
        yield Text(
            f"  a rank of a stage sends from {size(low)} (stage {words.runs(tuple(alike[low]))}) to {size(high)} "
            f"(stage {words.runs(tuple(alike[high]))})"
        )


def _cluster(bill: Bill) -> Iterator[Text]:
    sent, leaving = (bill.all_together.get(name, 0) for name in CLUSTER)
    if sent:
        part = f"{size(leaving)} ({words.share(leaving, sent)})" if leaving else "nothing"
        yield Text(
            f"  all {bill.ledger.mesh.world_size:,} ranks together send {size(sent)}, {part} of it between nodes"
        )


def _events(bill: Bill, signs: Glyphs, width: int, *, exact: bool) -> Iterator[Text]:
    mesh, wide = bill.ledger.mesh, width >= _WIDE
    staged = mesh.stages > 1 and bill.whole
    grid = Grid(_columns(width, staged=staged, timed=bill.timed), signs.line)
    paid, times = bill.groups("strategy"), bill.seconds_by("strategy")
    for strategy, lines in groupby(bill.lines, key=lambda line: line.event.strategy):
        sums = paid.get(strategy, Totals())
        blank = ("",) * (7 if staged else 6)
        figures = (*_figures(sums, "", exact=exact), *_time(bill, times.get(strategy)))
        grid.row(strategy, *blank, *figures, span=True, style=_STRATEGY)
        for line in lines:
            grid.row(*_cells_of(line, bill, signs, wide=wide, staged=staged, exact=exact))
    grid.line()
    blank = ("",) * (7 if staged else 6)
    figures = (*_figures(bill.totals, "", exact=exact), *_time(bill, bill.total_seconds))
    grid.row(bill.payer, *blank, *figures, span=True, style=_TOTAL)
    yield from grid.fit(width)


def _time(bill: Bill, seconds: float | None) -> tuple[str, ...]:
    return (words.seconds(seconds),) if bill.timed else ()


def _columns(width: int, *, staged: bool, timed: bool) -> list[Column]:
    return [
        Column("#", style="dim"),
        Column("operation"),
        Column("on", least=10),
        *([Column("stage", drop=1, least=5)] if staged else []),
        Column("phase"),
        Column("why", least=26 if width >= _MIDDLE else 17),
        Column("dtype", drop=5),
        Column("as", drop=6),
        Column("calls", "right"),
        Column("payload", "right", drop=2),
        Column("sent", "right", style="bold"),
        Column("inside", "right", drop=4, style=_INSIDE),
        Column("between", "right", drop=3, style=_BETWEEN),
        *([Column("time", "right", drop=2)] if timed else []),
    ]


def _cells_of(line: Line, bill: Bill, signs: Glyphs, *, wide: bool, staged: bool, exact: bool) -> list[str]:
    event = line.event
    return [
        str(line.number),
        event.op,
        words.group(event, bill.ledger.mesh, signs),
        *([words.runs(event.stages)] if staged else []),
        event.phase if wide else _PHASES[event.phase],
        event.why,
        event.dtype,
        event.priced.algorithm,
        *_figures(line.totals, size(event.payload_bytes, exact=exact), exact=exact),
        *_time(bill, bill.seconds(event)),
    ]


def _figures(totals: Totals, payload: str, *, exact: bool) -> tuple[str, ...]:
    paid = (totals.sent_bytes, totals.intra_node_bytes, totals.inter_node_bytes)
    sent, inside, between = (size(x, exact=exact) for x in paid)
    return (f"{totals.calls:,}", payload, sent, inside, between)


def _closing(bill: Bill) -> Iterator[Text]:
    staged = bill.ledger.mesh.stages > 1 and bill.whole
    yield Text(
        "Calls: of one rank in one step. Payload: the whole buffer of one call. Sent: by the rank in the last row, all "
        "calls together, without protocol headers. GB is 10^9 bytes; --exact writes every digit."
        + (
            " Rows that only other stages call are of the busiest rank there, and in no sum."
            if staged
            else ""
        ),
        style="dim",
    )
    yield from _on_time(bill)
    yield Text("The formula behind a row: meshcost explain JOB NUMBER", style="dim")


def _on_time(bill: Bill) -> Iterator[Text]:
    if bill.timed:
        yield Text("Time: on {cluster}. {caveat}".format(**bill.timed_on), style="dim")


def _groups(bill: Bill, by: str, signs: Glyphs, width: int, *, exact: bool) -> Iterator[Text]:
    groups, cluster, times = bill.groups(by), bill.together(by), bill.seconds_by(by)
    links = by == "link"
    grid = Grid(_group_columns(by, cluster=bool(cluster), timed=bool(times)), signs.line)
    for name, sums in groups.items():
        title = name.replace(" x ", f" {signs.times} ") if by == "axis" else name
        time = (words.seconds(times[name]),) if times else ()
        grid.row(*_group_cells(bill, title, sums, cluster.get(name, {}), links=links, exact=exact), *time)
    if by != "stage" or not bill.whole:
        grid.line()
        everything = bill.all_together
        cells = _group_cells(bill, bill.payer, bill.totals, everything, links=links, exact=exact)
        grid.row(*cells, *((words.seconds(bill.total_seconds),) if times else ()), style=_TOTAL)
    yield from grid.fit(width)
    yield Text("")
    if slower := _slower(bill):
        yield Text(slower, _HEAD)
    if by == "stage" and bill.whole:
        yield Text("Each row is one rank of that stage; shares are of the busiest.", style="dim")
    if cluster:
        yield Text(_ALL_RANKS if links else _ALL_BETWEEN, style="dim")
    if times:
        yield from _on_time(bill)
    elif bill.timed:
        yield Text(_NO_TIME, style="dim")


_NO_TIME = "Both kinds of link work at the same time: seconds cannot be told apart by link."
_ALL_RANKS = "All ranks: what all of them send together; the rest is of one rank."
_ALL_BETWEEN = "All between: bytes between nodes, of all ranks together; the rest is of one rank."


def _group_columns(by: str, *, cluster: bool, timed: bool) -> list[Column]:
    links = by == "link"
    every = [
        Column({"op": "operation"}.get(by, by), least=12),
        Column("calls", "right"),
        Column("payload", "right", drop=2),
        Column("sent", "right", style="bold"),
        Column("share", "right", drop=1),
        Column("received", "right", drop=5),
        Column("inside", "right", drop=4, style=_INSIDE),
        Column("between", "right", drop=4, style=_BETWEEN),
        *([Column("all ranks" if links else "all between", "right", drop=3)] if cluster else []),
        *([Column("time", "right", drop=2)] if timed else []),
    ]
    return [x for x in every if not links or x.title in ("link", "sent", "share", "all ranks")]


def _group_cells(
    bill: Bill, name: str, sums: Totals, cluster: Mapping[str, int], *, links: bool, exact: bool
) -> list[str]:
    sent, together, leaving = sums.sent_bytes, cluster.get(SENT), cluster.get(LEAVING)
    share = words.share(sent, bill.totals.sent_bytes)
    last = together if links else leaving
    everyone = [] if last is None else [size(last, exact=exact)]
    if links:
        return [name, size(sent, exact=exact), share, *everyone]
    payload, *rest = (
        size(x, exact=exact)
        for x in (sums.payload_bytes, sums.received_bytes, sums.intra_node_bytes, sums.inter_node_bytes)
    )
    return [name, f"{sums.calls:,}", payload, size(sent, exact=exact), share, *rest, *everyone]
