"""What a person may write behind a command: formats, arguments that several commands share, and what completes them."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from meshcost.errors import not_known


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


class Profile(StrEnum):
    """Whose calls a bill lists."""

    textbook = "textbook"
    torch = "torch"


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


class LogFormat(StrEnum):
    """How a recording is written."""

    log = "log"
    json = "json"


class CallFormat(StrEnum):
    """How a stream of calls is written."""

    table = "table"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


def choice(kind: type[StrEnum], name: str, *, help: str, show_default: bool = True) -> Any:
    """An option with few legal values; a wrong one is refused in our words, with the nearest."""

    def read(value: str) -> StrEnum:
        if value in set(kind):
            return kind(value)
        raise typer.BadParameter(not_known(value, kind))

    def complete(incomplete: str) -> Iterator[str]:
        return (each for each in kind if each.startswith(incomplete))

    metavar = f"[{'|'.join(kind)}]"
    return typer.Option(
        name, parser=read, metavar=metavar, autocompletion=complete, help=help, show_default=show_default
    )


def complete_models(incomplete: str) -> Iterator[str]:
    """Names of the catalogue, read from its folder: a shell does not wait for the models themselves."""
    shelf = Path(__file__).parents[1] / "models" / "catalogue"
    return (path.stem for path in sorted(shelf.glob("*.yaml")) if path.stem.startswith(incomplete))


def complete_clusters(incomplete: str) -> Iterator[str]:
    """Names of the clusters, read from their folder."""
    shelf = Path(__file__).parents[1] / "clusters" / "catalogue"
    return (path.stem for path in sorted(shelf.glob("*.yaml")) if path.stem.startswith(incomplete))


def read_frameworks(names: str) -> str:
    """Check a list of frameworks; each is refused as a choice is, and one that is named twice."""
    seen = set()
    for name in filter(None, (name.strip() for name in names.split(","))):
        if name not in set(Profile):
            raise typer.BadParameter(not_known(name, Profile))
        if name in seen:
            raise typer.BadParameter(
                f"{name} is named twice: a bill has nothing beyond itself. Name it once."
            )
        seen.add(name)
    return names


_OPERATIONS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv", "gather", "scatter",
    "barrier",
)  # fmt: skip


def complete_operations(incomplete: str) -> Iterator[str]:
    """Names of the operations."""
    return (name for name in _OPERATIONS if name.startswith(incomplete))


JobFile = Annotated[
    Path,
    typer.Argument(
        metavar="JOB",
        help="A job file (meshcost init writes one), or - for standard input.",
        show_default=False,
    ),
]
BillFile = Annotated[
    Path,
    typer.Argument(
        metavar="JOB",
        help="A job file (meshcost init writes one), - for standard input, or a bill saved with --format json.",
        show_default=False,
    ),
]
OnCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help=f"Seconds on this cluster: {', '.join(complete_clusters(''))}, or a file of verify --save.",
        autocompletion=complete_clusters,
        show_default=False,
    ),
]
Framework = Annotated[
    Profile | None,
    choice(
        Profile,
        "--framework",
        help="Whose calls, whatever the job says: those of the papers, or of PyTorch.",
        show_default=False,
    ),
]
