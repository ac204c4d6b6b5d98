"""Differences: kinds of call, told apart by what is called, on which group and when, and how two ledgers differ in them.

The strategy that makes a call does not count: the reduce-scatter of ZeRO-1 and that of ZeRO-2 are one kind. Ledgers
are alike in a kind if they call it as often, on the same buffers, and send as much: groups of other sizes do not.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from meshcost.event import Event, Phase, Totals


class Kind(NamedTuple):
    """A line of a comparison."""

    op: str
    axes: tuple[str, ...]
    phase: Phase


@dataclass(slots=True)
class Tally:
    """All calls of one kind: how many, what they send, why, and exactly on what (data type and bytes), in which groups."""

    calls: int = 0
    payload_bytes: int = 0
    sent_bytes: int = 0
    reasons: tuple[str, ...] = ()
    buffers: Counter[tuple[str, int]] = field(default_factory=Counter)
    group_sizes: tuple[int, ...] = ()

    def alike(self, other: "Tally") -> bool:
        """Whether both are the same calls, at the same cost."""
        return (self.buffers, self.sent_bytes) == (other.buffers, other.sent_bytes)


@dataclass(frozen=True, slots=True)
class Difference:
    """A kind of call that two ledgers make a different number of times, on other buffers, or at another cost."""

    op: str
    axes: tuple[str, ...]
    phase: Phase
    reasons: tuple[str, ...] = ()
    calls: int = 0
    other_calls: int = 0
    sent_bytes: int = 0
    other_sent_bytes: int = 0


def tally(paid: Iterable[tuple[Event, Totals]]) -> dict[Kind, Tally]:
    """Count calls by kind: events, each with what one rank pays for it.

    >>> tally(())
    {}
    """
    found: dict[Kind, Tally] = {}
    for event, totals in paid:
        kind = found.setdefault(Kind(event.op, event.axes, event.phase), Tally())
        kind.calls += totals.calls
        kind.payload_bytes += totals.payload_bytes
        kind.sent_bytes += totals.sent_bytes
        kind.buffers[event.dtype, event.payload_bytes] += totals.calls
        kind.reasons = tuple(dict.fromkeys((*kind.reasons, event.why)))
        kind.group_sizes = tuple(sorted({*kind.group_sizes, event.group_size}))
    return found


def differences(mine: Mapping[Kind, Tally], theirs: Mapping[Kind, Tally]) -> tuple[Difference, ...]:
    """List the kinds that are not alike, in the order in which they first come."""
    found = []
    for kind in {**mine, **theirs}:
        one, other = mine.get(kind, Tally()), theirs.get(kind, Tally())
        if not one.alike(other):
            reasons = tuple(dict.fromkeys((*one.reasons, *other.reasons)))
            figures = (one.calls, other.calls, one.sent_bytes, other.sent_bytes)
            found.append(Difference(*kind, reasons, *figures))
    return tuple(found)
