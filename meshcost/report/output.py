"""Standard output: pages for people, data for programs, as wide and as colourful as the reader allows."""

import io
import json
import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshcost.errors import MeshcostError, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

#: Columns of a page where nobody says how wide it is: a pipe or a file.
_PAGE = 160


class _Page(io.StringIO):
    """A page in memory that says of itself what standard output would."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """Whether a person reads it."""
        return sys.stdout is not None and sys.stdout.isatty()


@dataclass(frozen=True, slots=True)
class _Harmless:
    """A page whose text is written out where a terminal would obey it, before colours are put around it."""

    page: "RenderableType"

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """Yield what the page does."""
        for segment in console.render(self.page, options):
            yield segment._replace(text=printable(segment.text))


def show(renderable: "RenderableType") -> None:
    """Print for people: as wide as the terminal, in its colours and its letters; a pipe gets a wide plain page."""
    from rich.console import Console

    page = _Page()
    page.encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    columns = os.environ.get("COLUMNS", "")
    told = page.isatty() or (columns.isdigit() and int(columns) > 0)
    width = shutil.get_terminal_size((_PAGE, 24)).columns if told else _PAGE
    console = Console(file=page, width=width, highlight=False, legacy_windows=False)
    console.print(_Harmless(renderable), crop=False)
    _write(f"{line.rstrip()}\n" for line in page.getvalue().splitlines())


def write_json(data: Any) -> None:
    """Print for programs: one JSON value, indented."""
    write([json.dumps(data, indent=2), "\n"])


def write(pieces: Iterable[str]) -> None:
    """Write to standard output, with control characters written out: names may come from files."""
    _write(map(printable, pieces))


def _write(pieces: Iterable[str]) -> None:
    """Write. A reader who has had enough ends us quietly; a full disk is an error."""
    if sys.stdout is None:
        return
    try:
        for piece in pieces:
            sys.stdout.write(piece)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # so that nothing is left to fail at exit
        if isinstance(error, BrokenPipeError):
            raise SystemExit(0) from None
        raise MeshcostError(f"standard output: cannot be written: {error.strerror}.") from None
