"""What a person may write behind a command: formats, arguments that several commands share, and what completes them."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class By(StrEnum):
    """What a bill is added up by."""

    event = "event"
    strategy = "strategy"
    op = "op"
    phase = "phase"
    axis = "axis"
    link = "link"
    stage = "stage"
    algorithm = "algorithm"


class BillFormat(StrEnum):
    """How a bill is written."""

    table = "table"
    json = "json"
    csv = "csv"
    markdown = "markdown"


class PageFormat(StrEnum):
    """How a page is written."""

    table = "table"
    json = "json"


class TextFormat(StrEnum):
    """How a teaching page is written."""

    text = "text"
    json = "json"


class CallFormat(StrEnum):
    """How a stream of calls is written."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


def complete_models(incomplete: str) -> Iterator[str]:
    """Names of the catalogue, read from its folder: a shell does not wait for the models themselves."""
    shelf = Path(__file__).parents[1] / "models" / "catalogue"
    return (path.stem for path in sorted(shelf.glob("*.yaml")) if path.stem.startswith(incomplete))


_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")


def complete_operations(incomplete: str) -> Iterator[str]:
    """Names of the operations."""
    return (name for name in _OPERATIONS if name.startswith(incomplete))


JobFile = Annotated[
    Path, typer.Argument(metavar="JOB", help="A job file; meshcost init writes one.", show_default=False)
]
Framework = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Whose calls: textbook is what the papers say.", show_default=False),
]
