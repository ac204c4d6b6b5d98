"""Pictures of buffers as lines of text: who holds what, one row per rank, one cell per chunk."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshcost.collectives.operations import Cell, Operation, State
from meshcost.report import words

_EMPTY = "."
_SPELLED_OUT = 4


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The few signs that a terminal may not have."""

    arrow: str
    sum: str
    bar: str
    infinity: str
    line: str
    ceiling: tuple[str, str]
    floor: tuple[str, str]


UNICODE = Glyphs(arrow="→", sum="Σ", bar="█", infinity="∞", line="─", ceiling=("⌈", "⌉"), floor=("⌊", "⌋"))
ASCII = Glyphs(
    arrow="->", sum="*", bar="#", infinity="oo", line="-", ceiling=("ceil(", ")"), floor=("floor(", ")")
)


class Panel(NamedTuple):
    """A titled picture: one row per rank."""

    title: str
    rows: list[str]


def letter(rank: int) -> str:
    """Name a rank's data.

    >>> letter(0), letter(15)
    ('A', 'P')
    """
    return chr(ord("A") + rank)


def cell_text(cell: Cell, ranks: int, glyphs: Glyphs, *, spelled: bool) -> str:
    """Write one cell: a chunk of one rank, a sum, or nothing. ``spelled`` writes the terms of a sum.

    >>> cell_text(frozenset({(0, 1), (1, 1)}), 2, ASCII, spelled=True)
    'A1+B1'
    >>> cell_text(frozenset({(0, 1), (1, 1)}), 2, ASCII, spelled=False)
    '*1'
    """
    if cell is None:
        return _EMPTY
    if len(cell) == ranks and not spelled:
        return f"{glyphs.sum}{min(cell)[1]}"
    return "+".join(f"{letter(rank)}{chunk}" for rank, chunk in sorted(cell))


def panel(title: str, state: State, glyphs: Glyphs, *, spelled: bool) -> Panel:
    """Draw a state, its cells aligned.

    >>> print(*panel("", ((frozenset({(0, 0)}), None),) * 2, ASCII, spelled=True).rows, sep="|")
    A0 .|A0 .
    """
    rows = [[cell_text(cell, len(state), glyphs, spelled=spelled) for cell in row] for row in state]
    gap = "  " if spelled and any("+" in text for row in rows for text in row) else " "
    wide = max(len(text) for row in rows for text in row)
    return Panel(title, [gap.join(text.ljust(wide) for text in row).rstrip() for row in rows])


def draw(panels: Sequence[Panel], glyphs: Glyphs, width: int) -> list[str]:
    """Put pictures side by side with arrows between, or below each other where the width does not hold them.

    A row is never broken: where it is too long even so, one line says how much wider the page has to be.

    >>> draw([Panel("a", ["A0 A1"])], ASCII, 10)
    ['Not drawn: it takes 3 columns more.']
    """
    lines = _laid_out(panels, glyphs, width)
    more = _widest(lines) - width
    return lines if more <= 0 else [f"Not drawn: it takes {words.plural(more, 'column')} more."]


def _laid_out(panels: Sequence[Panel], glyphs: Glyphs, width: int) -> list[str]:
    lines = _side_by_side(panels, glyphs)
    if _widest(lines) <= width:
        return lines
    labels = _labels(panels[0])
    return [line for number, each in enumerate(panels) for line in _below(number, each, labels)]


def _widest(lines: Iterable[str]) -> int:
    return max(map(len, lines))


def draw_rows(panels: Sequence[Panel], glyphs: Glyphs, width: int) -> list[str]:
    """Put pictures side by side, as many in a row as the width holds, and the rows below each other.

    >>> print(*draw_rows([Panel(x, ["A0"]) for x in ("a", "b", "c")], ASCII, 16), sep="|")
            a     b|rank 0  A0 -> A0||        c|rank 0  A0
    """
    rows: list[list[Panel]] = []
    for each in panels:
        if rows and _widest(_side_by_side([*rows[-1], each], glyphs)) <= width:
            rows[-1].append(each)
        else:
            rows.append([each])
    return [line for row in rows for line in ("", *draw(row, glyphs, width))][1:]


def _below(number: int, each: Panel, labels: list[str]) -> list[str]:
    columns = _column("", labels), _column("", each.rows)
    rows = ["  ".join(line).rstrip() for line in zip(*columns, strict=True)]
    return [*[""] * bool(number), f"{each.title}:", *rows[1:]]


def _column(title: str, rows: Iterable[str]) -> list[str]:
    lines = [title, *rows]
    wide = max(map(len, lines))
    return [line.ljust(wide) for line in lines]


def _labels(each: Panel) -> list[str]:
    return [f"rank {rank}" for rank in range(len(each.rows))]


def _side_by_side(panels: Sequence[Panel], glyphs: Glyphs) -> list[str]:
    columns = [_column("", labels := _labels(panels[0]))]
    for number, each in enumerate(panels):
        columns.append(_column("", [glyphs.arrow if number else ""] * len(labels)))
        columns.append(_column(each.title, each.rows))
    return [" ".join(line).rstrip() for line in zip(*columns, strict=True)]


def before_after(op: Operation, ranks: int, glyphs: Glyphs, width: int) -> tuple[list[str], str]:
    """Draw what an operation does, and say how to read it; sums are spelled out where they are short.

    >>> from meshcost.collectives.operations import operation
    >>> lines, how = before_after(operation("all_gather"), 2, ASCII, 80)
    >>> print(*lines, sep="|")
            before    after|rank 0  A0 .   -> A0 B1|rank 1  . B1   -> A0 B1
    """
    states = {"before": op.before(ranks), "after": op.after(ranks)}

    def panels(*, spelled: bool) -> list[Panel]:
        return [panel(title, state, glyphs, spelled=spelled) for title, state in states.items()]

    spelled = ranks <= _SPELLED_OUT and _widest(_laid_out(panels(spelled=True), glyphs, width)) <= width
    return draw(panels(spelled=spelled), glyphs, width), legend(states.values(), glyphs, spelled=spelled)


def legend(states: Iterable[State], glyphs: Glyphs, *, spelled: bool, empty: str = "nothing") -> str:
    """Say how to read a picture of some states."""
    rows = [row for state in states for row in state]
    cells, ranks = [cell for row in rows for cell in row], len(rows[0])
    holders = {rank for cell in cells for rank, _ in cell or ()}
    others = ", B0 that of rank 1, and so on" * (len(holders) > 1)
    signs = [f"A0 is chunk 0 of rank 0's data{others}"] if holders else []
    if any(cell and len(cell) > 1 for cell in cells) and not spelled:
        named = [f"{letter(rank)}0" for rank in range(ranks)]
        terms = named if ranks <= _SPELLED_OUT else [*named[:2], "...", named[-1]]
        signs.append(f"{glyphs.sum}0 = {' + '.join(terms)}")
    if any(cell is None for cell in cells):
        signs.append(f"{_EMPTY} is {empty}")
    return "; ".join(signs) + "."


def tiny(op: Operation, glyphs: Glyphs, ranks: int = 3) -> list[str]:
    """Draw an operation in small: each cell is a chunk, whose data it is and which of them, or the sum.

    >>> from meshcost.collectives.operations import operation
    >>> tiny(operation("all_to_all"), ASCII, 2)
    ['A0 A1 -> A0 B0', 'B0 B1 -> A1 B1']
    """
    states = (panel("", state, glyphs, spelled=False).rows for state in (op.before(ranks), op.after(ranks)))
    before, after = ([row.ljust(3 * ranks - 1) for row in rows] for rows in states)
    return [f"{left} {glyphs.arrow} {right}".rstrip() for left, right in zip(before, after, strict=True)]


def plain(state: State) -> list[str]:
    """One string per rank, every sum spelled out: for files, not for eyes.

    >>> plain(((frozenset({(0, 0), (1, 0)}), None),) * 2)
    ['A0+B0 .', 'A0+B0 .']
    """
    return [" ".join(cell_text(cell, len(row), ASCII, spelled=True) for cell in row) for row in state]
