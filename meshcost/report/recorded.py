"""What ``meshcost record`` prints: the calls of each rank, those that call the same together."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from meshcost.report import words


class Recorded(Protocol):
    """The calls of one rank."""

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What was recorded: which step, of how many, and whether it repeats itself."""

    @property
    def shape(self) -> Hashable:
        """What it shares with a rank that differs only in whom it talks to."""

    def log(self) -> str:
        """The calls as text."""

    def to_dict(self) -> dict[str, Any]:
        """The recording as JSON values."""


def pages(recordings: Iterable[Recorded], folder: Path) -> Iterator[str]:
    """Yield the log of one rank of each kind, and where all of them are."""
    recordings = list(recordings)
    yield from logs(recordings)
    about = recordings[0].about
    steps = words.plural(about["steps"], "step")
    if not about["saw_step"]:
        yield "No optimizer stepped, so where a step ends is not known: all calls stand as one step.\n"
    kind = "the steady state" if about["steady"] else "not the steady state"
    yield f"step {about['step']} of {steps}, {kind}; each rank in full: {folder / 'rank-0.json'} and so on.\n"


def logs(recordings: Iterable[Recorded]) -> Iterator[str]:
    """Yield the log of one rank of each kind, and which others are like it."""
    kinds: dict[Hashable, list[Recorded]] = {}
    for recording in recordings:
        kinds.setdefault(recording.shape, []).append(recording)
    for found in kinds.values():
        first = found[0]
        yield first.log() + "\n"
        if len(found) > 1:
            others = tuple(each.rank for each in found[1:])
            yield f"  the same on {'rank' if len(others) == 1 else 'ranks'} {words.runs(others)}\n"
        yield "\n"


def as_dict(recordings: Iterable[Recorded]) -> dict[str, Any]:
    """All recordings as JSON values, as ``meshcost.assert_same`` reads them."""
    return {"recordings": [recording.to_dict() for recording in recordings]}
