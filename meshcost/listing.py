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
    """Yield the events as every list shows them."""
    events = ordered(ledger)
    yield from map(Listed, range(1, len(events) + 1), names(events), events)


def ordered(ledger: Ledger) -> tuple[Event, ...]:
    """Sort the events of a ledger as every list of them is shown."""
    weight = {event.strategy: 0 for event in ledger}
    for event in ledger:
        weight[event.strategy] += _moved(event.totals)
    return tuple(
        sorted(ledger, key=lambda event: (-weight[event.strategy], event.strategy, -_moved(event.totals)))
    )


def _moved(totals: Totals) -> int:
    return max(totals.sent_bytes, totals.received_bytes)


def names(events: tuple[Event, ...]) -> list[str]:
    """Name events so that a person can ask for one: strategy, operation and phase; ``.2``, ``.3`` where that repeats."""
    seen: dict[str, int] = {}
    found = []
    for event in events:
        name = f"{event.strategy}.{event.op}.{event.phase}"
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}.{seen[name]}")
    return found
