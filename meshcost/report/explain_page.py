"""An explanation as a page, and the list of what can be explained."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from textwrap import wrap
from types import MappingProxyType

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshcost import symbols as sym
from meshcost.clusters import LinkClass
from meshcost.event import BETWEEN, INSIDE
from meshcost.formula import pretty, substituted
from meshcost.report import words
from meshcost.report.bill import Bill
from meshcost.report.explain import Explanation, Formula
from meshcost.report.grid import Column, Grid
from meshcost.report.growth import Growth
from meshcost.report.terminal import header
from meshcost.timing import Timing, Transfer, Wait
from meshcost.units import human_bytes

#: Where a class of links is.
_LINK: Mapping[LinkClass, str] = MappingProxyType({"intra_node": INSIDE, "inter_node": BETWEEN})


@dataclass(frozen=True, slots=True)
class Listed:
    """All events of a bill with the numbers and names by which they are explained, as a rich renderable."""

    bill: Bill

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield lines that fit the console."""
        signs = words.glyphs(options)
        yield from header(self.bill, signs)
        yield Text("")
        grid = Grid(
            (
                Column("#", style="dim"),
                Column("event", style="bold"),
                Column("on", drop=2, least=10),
                Column("why", drop=1, least=20),
                Column("sent", "right"),
            ),
            signs.line,
        )
        for line in self.bill.lines:
            on = words.group(line.event, self.bill.ledger.mesh, signs)
            grid.row(str(line.number), line.name, on, line.event.why, words.size(line.totals.sent_bytes))
        yield from grid.fit(options.max_width)
        yield Text("")
        yield Text(
            "One of them in full: meshcost explain JOB with its number, its name or the beginning of it",
            "dim",
        )


@dataclass(frozen=True, slots=True)
class Page:
    """One explanation as a rich renderable."""

    explanation: Explanation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield a page that fits the console."""
        signs, shown = words.glyphs(options), self.explanation
        yield Text.assemble((f"{shown.line.number}  ", "dim"), (shown.line.name, "bold"))
        yield Text(_in_words(shown, signs))
        formulas = shown.formulas()
        yield from _section("Formulas", [_formula_table(formulas)])
        yield from _section("Symbols", [_symbol_table(shown)])
        yield from _section("Step by step", _steps(shown, formulas, options.max_width - 2))
        if shown.bill.timed:
            yield from _section(f"How long on {shown.bill.timed_on['cluster']}", _seconds(shown, signs))
        if (growth := shown.growth()) is not None:
            yield from _section(f"How what is {shown.moves} grows", _growth(growth, shown.moves))
        yield from _section("Who says so", [_source_table(shown)])
        if growth is None:
            yield Text("")
            yield Text(
                "How it grows is not shown: a saved bill does not hold the job, and growth needs it.",
                style="dim",
            )


def _in_words(shown: Explanation, signs: words.Glyphs) -> str:
    event, mesh = shown.event, shown.ledger.mesh
    on = words.group(event, mesh, signs)
    several = "stages" if len(event.stages) > 1 else "stage"
    stages = f" of {several} {words.runs(event.stages)}" if mesh.stages > 1 else ""
    times = words.plural(event.calls, "time")
    partner = {"send": "to one rank of", "recv": "from one rank of"}.get(event.op, "with")
    return (
        f"In one step each rank{stages} calls {event.op} {times} in {event.phase}, {partner} its group of "
        f"{words.plural(event.group_size, 'rank')} ({on}), on {human_bytes(event.payload_bytes)} of {event.dtype} each. "
        f"Why: {event.why}."
    )


def _section(heading: str, contents: Iterable[Text | Table]) -> Iterator[Text | Padding]:
    yield Text("")
    yield Text(heading, style="bold cyan")
    for content in contents:
        yield Padding(content, (0, 0, 0, 2))


def _table(*styles: str) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for style in styles:
        table.add_column(style=style, overflow="fold")
    return table


def _formula_table(formulas: tuple[Formula, ...]) -> Table:
    table = _table("", "bold", "")
    table.columns[0].no_wrap = True
    for x in formulas:
        symbols = (
            "; S: payload, n: ranks of the group" if x.formula.has(sym.S) or x.formula.has(sym.n) else ""
        )
        table.add_row(Text(x.name), Text(pretty(x.formula)), Text(x.meaning + symbols))
    return table


def _symbol_table(shown: Explanation) -> Table:
    table = _table("bold", "", "dim", "")
    table.columns[1].justify, table.columns[1].no_wrap, table.columns[0].no_wrap = "right", True, True
    for x in shown.symbols():
        number = f"{x.value:,}" if isinstance(x.value, int) else str(x.value)
        text = sym.meaning(x.symbol)
        if x.definition is not None:
            put_in = substituted(x.definition, shown.event.values)
            text = f"{text.partition(':')[0]}: {pretty(x.definition)} = {put_in}"
        table.add_row(Text(str(x.symbol)), Text(number), Text(sym.unit(x.symbol)), Text(text))
    return table


def _steps(shown: Explanation, formulas: tuple[Formula, ...], width: int) -> Iterator[Text]:
    for x in formulas[:-1]:
        yield from _substitution(x, width)
    last, totals = formulas[-1], shown.event.totals
    calls, one = formulas[1].value, formulas[2].value
    yield from _substitution(last, width)
    check = "the same" if calls * one == last.value else "NOT the same"
    yield Text(f"that is calls * one call = {calls} * {one}: {check}")
    if shown.moves == "sent" and totals.sent_bytes:
        yield Text("")
        for name, part in ((INSIDE, totals.intra_node_bytes), (BETWEEN, totals.inter_node_bytes)):
            yield Text(f"{name}: {part:,} B ({words.share(part, totals.sent_bytes)})")
        if not shown.event.all_pay_alike:
            yield Text(
                "by the rank that sends most, and of those the one that sends most between nodes, at the edge of its node: "
                "meshcost analyze JOB --rank RANK has what another one sends",
                style="dim",
            )


def _substitution(x: Formula, width: int) -> Iterator[Text]:
    pad = " " * len(x.name)
    result = f"{x.value:,} {x.unit}".rstrip()
    if x.unit == "B" and x.value >= 1000:
        result += f" ({human_bytes(x.value)})"
    yield _equation(x.name, pretty(x.formula), width)
    if x.substituted not in (pretty(x.formula), str(x.value)):
        yield _equation(pad, x.substituted, width)
    yield Text.assemble(f"{pad} = ", (result, "bold"))


def _equation(left: str, right: str, width: int) -> Text:
    """Write an equation; a long one goes on below its own beginning."""
    indent = len(left) + 3
    lines = wrap(right, max(20, width - indent), break_long_words=False, break_on_hyphens=False)
    return Text(f"{left} = " + ("\n" + " " * indent).join(lines))


def _seconds(shown: Explanation, signs: words.Glyphs) -> Iterator[Table | Text]:
    calls, whole = shown.event.calls, shown.bill.seconds(shown.event)
    table, one = _table("", ""), shown.timing
    if one is None:
        table.add_row("all calls", f"{words.seconds(whole)}, as the saved bill states")
    elif not one.transfers:
        table.add_row("one call", "no seconds of its own: its message is timed where it is sent")
    else:
        table.add_row("bytes", "\n".join(_transfer(x, signs) for x in one.transfers))
        if one.waits:
            table.add_row("rounds", "\n".join(_wait(x, signs) for x in one.waits))
        parts = [max(x.seconds for x in one.transfers), *(x.seconds for x in one.waits)]
        table.add_row("one call", f"{' + '.join(map(words.seconds, parts))} = {words.seconds(one.seconds)}")
        table.add_row(
            "all calls", f"{calls:,} {signs.times} {words.seconds(one.seconds)} = {words.seconds(whole)}"
        )
    yield table
    for note in _notes_on_time(shown, one):
        yield Text(note, style="dim")
    yield Text(shown.bill.timed_on["caveat"], style="dim")


def _transfer(x: Transfer, signs: words.Glyphs) -> str:
    turns = f" {signs.times} {x.turns:g}" if x.turns != 1 else ""
    speed = f"{x.bandwidth / 1e9:,.4g} GB/s"
    return f"{x.size:,} B {_LINK[x.link]}{turns} / {speed} = {words.seconds(x.seconds)}"


def _wait(x: Wait, signs: words.Glyphs) -> str:
    return (
        f"{x.rounds:,} {_LINK[x.link]} {signs.times} {words.seconds(x.latency)} = {words.seconds(x.seconds)}"
    )


def _notes_on_time(shown: Explanation, one: Timing | None) -> Iterator[str]:
    if one is None:
        return
    if 0 < shown.event.priced.rail_bytes < shown.event.priced.inter_node_bytes and len(one.transfers) > 1:
        yield (
            "What leaves a node is shared out: each rank there sends its share by its own adapter, and hands the rest to "
            "its neighbour inside."
        )
    if len(one.transfers) > 1:
        yield "Both kinds of link work at the same time: the slower one counts."
    if any(x.turns > 1 for x in one.transfers):
        yield "A node has fewer network adapters than ranks, which take turns."
    if one.by_tree:
        yield "Rounds and bytes, n/(n - 1) times the ring's, are those of a tree, which is faster than the ring here."


def _growth(growths: tuple[Growth, ...], moves: str) -> Iterator[Text]:
    width = max((len(x.quantity) for x in growths), default=0)
    for x in growths:
        yield Text(f"{x.quantity:<{width}}  {_effect(x, moves)}")
    yield Text("")
    yield Text("Elasticity: percent that it grows when the quantity alone grows by one percent.", style="dim")


def _effect(x: Growth, moves: str) -> str:
    slope = "" if x.elasticity is None else f" (elasticity {x.elasticity})"
    if x.doubled is not None:
        return f"x2 -> {moves} x{float(x.doubled):.4g}{slope}" + (f"; {x.why}" if x.why else "")
    return f"cannot double alone{slope}: {x.why}" if slope else x.why


def _source_table(shown: Explanation) -> Table:
    claimed = shown.source
    table = _table("", "")
    for name, text in (
        ("Source", claimed.get("Source", "a strategy of another package")),
        ("Assumes", claimed.get("Assumes", "")),
        ("Algorithm", f"{shown.event.priced.algorithm}: {shown.algorithm_source}"),
    ):
        if text:
            table.add_row(Text(name, no_wrap=True), Text(text))
    return table
