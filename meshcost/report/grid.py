"""Tables of text that fit: columns are dropped and sentences wrapped where a page is narrow, numbers never."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Literal

from rich.cells import cell_len
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    ``drop`` is its place in the order in which columns go where a page is narrow: the highest first, 0 never. ``least``
    is the width down to which its sentences may be wrapped; without it the column keeps its width.
    """

    title: str
    align: Literal["left", "right"] = "left"
    drop: int = 0
    least: int | None = None
    style: str = ""


@dataclass(slots=True)
class Grid:
    """Rows of cells under columns. A row may span: its first cell takes the room of all columns left of the numbers."""

    columns: Sequence[Column]
    rule: str = "-"
    rows: list[tuple[tuple[str, ...], bool, str]] = field(default_factory=list)
    rules: set[int] = field(default_factory=set)

    def row(self, *cells: str, span: bool = False, style: str = "") -> None:
        """Add a row: one cell for each column."""
        self.rows.append((cells, span, style))

    def line(self) -> None:
        """Draw a line below the last row."""
        self.rules.add(len(self.rows))

    def fit(self, width: int) -> Iterator[Text]:
        """Draw the table within a width; only if nothing more can be dropped or wrapped does it run over."""
        shown, widths, gap = self._layout(width)
        ruler = self.rule * min(width, sum(widths) + gap * (len(widths) - 1))
        yield from self._draw(tuple(c.title for c in self.columns), shown, widths, gap, "bold")
        yield _plain(ruler, "dim")
        for number, (cells, span, style) in enumerate(self.rows):
            if number in self.rules:
                yield _plain(ruler, "dim")
            if span:
                yield self._spanning(cells, shown, widths, gap, style)
            else:
                yield from self._draw(cells, shown, widths, gap, style)
        left_out = ", ".join(column.title for i, column in enumerate(self.columns) if i not in shown)
        if left_out:
            note = f"Columns left out: {left_out} (a wider page has them)."
            yield from (_plain(part, "dim") for part in wrap(note, width))

    def _layout(self, width: int) -> tuple[list[int], list[int], int]:
        shown = list(range(len(self.columns)))
        while self._needs(shown, 1) > width and any(self.columns[i].drop for i in shown):
            last = max(self.columns[i].drop for i in shown)
            shown = [i for i in shown if self.columns[i].drop != last]
        gap = self._gap(shown, width)
        spare = max(0, width - self._needs(shown, gap))
        widths = []
        for i in shown:
            least, natural = self._least(i), self._natural(i)
            more = min(spare, natural - least)
            widths.append(least + more)
            spare -= more
        return shown, widths, gap

    def _gap(self, shown: list[int], width: int) -> int:
        """Two blanks between columns where that costs nothing: no column, and no narrow sentences on a narrow page."""
        unwrapped = sum(self._natural(i) for i in shown) + 2 * (len(shown) - 1) <= width
        return 2 if unwrapped or (len(shown) == len(self.columns) and self._needs(shown, 2) <= width) else 1

    def _needs(self, shown: list[int], gap: int) -> int:
        return sum(self._least(i) for i in shown) + gap * (len(shown) - 1)

    def _natural(self, i: int) -> int:
        cells = (cells[i] for cells, span, _ in self.rows if not (span and self.columns[i].align == "left"))
        return max(cell_len(self.columns[i].title), *(cell_len(cell) for cell in cells), 0)

    def _least(self, i: int) -> int:
        least = self.columns[i].least
        return self._natural(i) if least is None else min(self._natural(i), least)

    def _draw(
        self, cells: Sequence[str], shown: list[int], widths: list[int], gap: int, style: str
    ) -> Iterator[Text]:
        parts = [wrap(cells[i], w) or [""] if w else [""] for i, w in zip(shown, widths, strict=True)]
        for number in range(max(map(len, parts))):
            line = _plain("")
            for i, width, part in zip(shown, widths, parts, strict=True):
                piece = part[number] if number < len(part) else ""
                line.append(_padded(piece, width, self.columns[i].align), style or self.columns[i].style)
                line.append(" " * gap)
            line.rstrip()
            yield line

    def _spanning(
        self, cells: Sequence[str], shown: list[int], widths: list[int], gap: int, style: str
    ) -> Text:
        first = next((n for n, i in enumerate(shown) if self.columns[i].align == "right"), len(shown))
        room = sum(widths[:first]) + gap * max(0, first - 1)
        line = _plain("")
        line.append(_padded(cells[0], room, "left"), style)
        for i, width in list(zip(shown, widths, strict=True))[first:]:
            line.append(" " * gap + _padded(cells[i], width, "right"), style)
        line.rstrip()
        return line


def _plain(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ignore")


def _padded(text: str, width: int, align: str) -> str:
    fill = " " * max(0, width - cell_len(text))
    return fill + text if align == "right" else text + fill
