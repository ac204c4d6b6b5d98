"""What each algorithm of an operation costs, as a page shows it: a table for each, in columns that all share."""

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text
from sympy import Expr

from meshcost.collectives import DEFAULTS
from meshcost.collectives.operations import Operation
from meshcost.collectives.optimality import Optimality, optimality
from meshcost.report.collectives_facts import Cost, Share, costs
from meshcost.report.collectives_group import Group
from meshcost.report.collectives_picture import Glyphs
from meshcost.report.notation import limit, multiple, written
from meshcost.report.words import runs

_GAP, _INDENT = "  ", "  "


class _Row(NamedTuple):
    """One figure: what it is, its formula, its value here and for many ranks, and how many times the least."""

    label: str
    formula: str
    here: str
    many: str = ""
    ratio: str = ""


def cost_tables(op: Operation, group: Group, glyphs: Glyphs, width: int) -> Iterator[RenderableType]:
    """Yield the table of each algorithm, each as wide as the page."""
    found = costs(op, group)
    least = {row.algorithm: row for row in optimality(group.ranks, op.calls[0], group.per_node)}
    tables = [list(_rows(cost, group, glyphs, least[cost.algorithm])) for cost in found]
    many = f"n {glyphs.arrow} {glyphs.infinity}"
    head = _Row("algorithm", "formula", f"n = {group.ranks}", many, "times the least")
    widths = [max(len(row[i]) for rows in (*tables, [head]) for row in rows) for i in range(len(head))]
    widths[0] += len(_INDENT)
    widths[1] = min(widths[1], width - sum(widths) + widths[1] - len(_GAP) * (len(head) - 1))
    yield from _lines(head, widths)
    yield Text(glyphs.line * (sum(widths) + len(_GAP) * (len(head) - 1)))
    for number, (cost, rows) in enumerate(zip(found, tables, strict=True)):
        if number:
            yield Text("")
        default = " (default)" * (cost.algorithm == DEFAULTS[op.calls[0]])
        yield Text.assemble((cost.algorithm, "bold"), default)
        yield _aside(cost.how)
        for row in rows:
            yield from _lines(row._replace(label=_INDENT + row.label), widths)
        if cost.one_node and group.nodes > 1:
            yield _aside(f"On one node only: these figures are for {group.ranks} ranks on one.")
        if len(cost.shares) > 1:
            yield _aside(f"Ranks differ: {'; '.join(map(_shared, cost.shares))}.")
        yield _aside(f"Source: {cost.source}")


def _aside(text: str) -> Padding:
    return Padding(Text(text), (0, 0, 0, len(_INDENT)))


def _lines(row: _Row, widths: list[int]) -> Iterator[Text]:
    """One row; a formula that is too long goes on below itself."""
    parts = list(_folded(row.formula, widths[1]))
    for number, part in enumerate(parts):
        shown = row._replace(formula=part) if not number else _Row("", part, "")
        cells = (cell.ljust(wide) for cell, wide in zip(shown, widths, strict=True))
        yield Text(_GAP.join(cells).rstrip())


def _folded(formula: str, width: int) -> Iterator[str]:
    """Break a formula where it has a blank."""
    line = ""
    for word in formula.split(" "):
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = ""
        line = f"{line} {word}".strip()
    yield line


def _rows(cost: Cost, group: Group, glyphs: Glyphs, least: Optimality) -> Iterator[_Row]:
    def row(label: str, amount: Expr, unit: str = "S", ratio: str = "") -> _Row:
        many = limit(group.for_many_ranks(amount), unit, glyphs)
        return _Row(label, written(amount, glyphs), multiple(group.payloads(amount), unit), many, ratio)

    yield row("rounds", cost.rounds, "", _times(least.rounds_ratio, always=least.least_rounds))
    if not cost.total:
        return
    most, is_sent = _times(least.bytes_ratio, always=least.least_bytes), cost.busy_sender(group)
    if cost.sent == cost.received:
        yield row("sent and received", cost.sent, ratio=most)
    else:
        yield row("sent", cost.sent, ratio=most * is_sent)
        yield row("received", cost.received, ratio=most * (not is_sent))
    if cost.inside is not None and cost.between is not None:
        yield row("of it in the node", cost.inside)
        yield row("to other nodes", cost.between)
    yield row("sent by all ranks", cost.total)
    if (crossing := cost.partly_crossing(group)) is not None:
        yield _Row("of it between nodes", "counted", multiple(crossing, "S"))
    if cost.added:
        yield row("added up", cost.added)


def _shared(share: Share) -> str:
    one = len(share.ranks) == 1
    who = f"rank{'s' * (not one)} {runs(share.ranks)} send{'s' * one}"
    return f"{who} {multiple(share.sent, 'S')} and get{'s' * one} {multiple(share.received, 'S')}"


def _times(ratio: Fraction, *, always: bool) -> str:
    return f"{multiple(ratio)}{' for any n' if always else ''}"
