"""How the events of a ledger are listed: in which order, under which number and name a person asks for one."""

from collections.abc import Iterator
from typing import NamedTuple

from meshcost.event import Event, Totals
from meshcost.ledger import Ledger


class Listed(NamedTuple):
    """An event with its number and its name, by which ``explain`` finds it."""

    number: int
    name: str
    event: Event


def listed(ledger: Ledger) -> Iterator[Listed]:
    """Yield the events as every list shows them: strategies that send most first, then by what one event sends."""
    found = names(ledger.events)
    weight = {event.strategy: 0 for event in ledger}
    for event in ledger:
        weight[event.strategy] += _moved(event.totals)
    rows = sorted(
        zip(found, ledger, strict=True),
        key=lambda row: (-weight[row[1].strategy], row[1].strategy, -_moved(row[1].totals)),
    )
    yield from (Listed(number, name, event) for number, (name, event) in enumerate(rows, 1))


def _moved(totals: Totals) -> int:
    return max(totals.sent_bytes, totals.received_bytes)


def names(events: tuple[Event, ...]) -> list[str]:
    """Name events so that a person can ask for one: strategy, operation and phase; ``.2``, ``.3`` where that repeats.

    They are counted in the order of the ledger, not by size: a dispatch comes before its combine in every job.
    """
    seen: dict[str, int] = {}
    found = []
    for event in events:
        name = f"{event.strategy}.{event.op}.{event.phase}"
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return found
