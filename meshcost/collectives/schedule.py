"""Schedules as data: which rank sends which cells to which rank in which round, and what that adds up to.

A schedule is interpreted, never rewritten. ``replay`` runs it over sets of contributions and refuses whatever could not
work; ``count`` adds up what each rank moves; the same data can move real tensors.

A cell is a piece of the logical buffer. Side by side, in the order of their numbers, cells make up the buffer of an
all-reduce, reduce, broadcast, reduce-scatter, gather, scatter or send, and the output of an all-gather; in an
all-to-all cell ``i * ranks + j`` is what rank i has for rank j. The cells of a barrier are empty. Rank 0 is the root,
and the sender of a message to rank 1.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from meshcost.errors import MeshcostError

Contributions = frozenset[int]
Held = dict[int, Contributions]


@dataclass(frozen=True, slots=True)
class Message:
    """One message: ``add`` says that the target adds the cells to its own, otherwise it keeps what arrives.

    >>> print(Message(2, 3, (1,), add=True))
    2 -> 3, cells 1, add
    """

    source: int
    target: int
    cells: tuple[int, ...]
    add: bool

    def __str__(self) -> str:
        """Write the message on one line."""
        cells = " ".join(map(str, self.cells))
        return f"{self.source} -> {self.target}, cells {cells}{', add' * self.add}"


#: Messages that travel at the same time: each uses only what its source held when the round began.
Round = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """The schedule of one operation over ``ranks`` ranks.

    ``cell_elements`` are the sizes of the cells, ``start`` and ``end`` the cells that each rank has and must have.
    ``switch`` says that messages go to and from a switch, which is written as rank number ``ranks``.
    """

    op: str
    ranks: int
    cell_elements: tuple[int, ...]
    start: tuple[frozenset[int], ...]
    end: tuple[tuple[int, ...], ...]
    rounds: tuple[Round, ...]
    switch: bool = False

    def size(self, message: Message) -> int:
        """Elements of a message."""
        return sum(self.cell_elements[cell] for cell in message.cells)


class Tally(NamedTuple):
    """What a schedule adds up to: elements (sent, received) and added by each rank, rounds, and elements in all.

    The total is what ranks send; where a switch takes part, its own sends are not in it.
    """

    moved: tuple[tuple[int, int], ...]
    added: tuple[int, ...]
    rounds: int
    total: int


class Ports(NamedTuple):
    """The most messages that one rank sends, and receives, in one round: (1, 1) is a one-port schedule."""

    sends: int
    receives: int


def replay(steps: Steps) -> tuple[Mapping[int, Contributions], ...]:
    """Run a schedule over sets of contributions: for each rank, the cells it ends with and whose data is in each.

    Raises MeshcostError where the schedule could not work: a rank sends a cell that it does not hold or adds to one, a
    contribution would be added twice, two messages of a round write one cell, a round is empty, or a cell that the
    operation promises is missing at the end.

    >>> swap = (Message(0, 1, (0,), add=True), Message(1, 0, (0,), add=True))
    >>> steps = Steps("all_reduce", 2, (5,), (frozenset({0}),) * 2, ((0,), (0,)), (swap,))
    >>> [sorted(rank[0]) for rank in replay(steps)]
    [[0, 1], [0, 1]]
    """
    *_, held = _played(steps)
    for rank, cells in enumerate(steps.end):
        missing = [cell for cell in cells if cell not in held[rank]]
        if missing:
            raise MeshcostError(f"rank {rank} ends without cells {missing}.")
    return tuple(held)


def _played(steps: Steps) -> Iterator[list[Held]]:
    """Yield who holds what before the first round and after each: one list, which the next round changes."""
    held: list[Held] = [{cell: frozenset({rank}) for cell in cells} for rank, cells in enumerate(steps.start)]
    if steps.switch:
        held.append({})
    yield held
    for number, messages in enumerate(steps.rounds):
        if not messages:
            raise MeshcostError(f"round {number}: nobody sends.")
        _play(messages, held, steps.ranks, f"round {number}")
        yield held


def in_use(steps: Steps) -> list[tuple[Mapping[int, Contributions], ...]]:
    """Return, before the first round and after each, the cells of each rank that the rest of the schedule still uses.

    Those are what it will send, add to, or must have at the end, and whose data is in each; errors are those of ``replay``.

    >>> turn = (Message(0, 1, (1,), add=True), Message(1, 0, (0,), add=True))
    >>> steps = Steps("reduce_scatter", 2, (5, 5), (frozenset({0, 1}),) * 2, ((0,), (1,)), (turn,))
    >>> [[list(rank) for rank in state] for state in in_use(steps)]
    [[[0, 1], [0, 1]], [[0], [1]]]
    """
    return [
        tuple(
            {cell: rank[cell] for cell in sorted(used & set(rank))}
            for rank, used in zip(held, uses, strict=True)
        )
        for held, uses in zip(_played(steps), _uses(steps), strict=True)
    ]


def _uses(steps: Steps) -> list[list[set[int]]]:
    """Go through the rounds from the last to the first: what is replaced was of no use, what is sent is."""
    uses = [[*map(set, steps.end), *[set[int]()] * steps.switch]]
    for messages in reversed(steps.rounds):
        used = [set(cells) for cells in uses[-1]]
        for message in messages:
            if not message.add:
                used[message.target].difference_update(message.cells)
        for message in messages:
            used[message.source].update(message.cells)
        uses.append(used)
    return uses[::-1]


def _play(messages: Round, held: list[Held], ranks: int, where: str) -> None:
    """Run one round: read everything first, then write."""
    taken = [(message, [_sent(message, cell, held, where) for cell in message.cells]) for message in messages]
    replaced, added = set[tuple[int, int]](), set[tuple[int, int]]()
    for message, contents in taken:
        rank = held[message.target]
        for cell, content in zip(message.cells, contents, strict=True):
            place = (message.target, cell)
            if place in replaced or (place in added and not message.add):
                raise MeshcostError(f"{where}: two messages write cell {cell} of rank {message.target}.")
            (added if message.add else replaced).add(place)
            if message.add and cell not in rank and message.target < ranks:
                raise MeshcostError(
                    f"{where}: {message} adds to cell {cell}, which the target does not hold."
                )
            if message.add and rank.get(cell, frozenset()) & content:
                raise MeshcostError(f"{where}: {message} adds a contribution to cell {cell} twice.")
            rank[cell] = rank.get(cell, frozenset()) | content if message.add else content


def _sent(message: Message, cell: int, held: list[Held], where: str) -> Contributions:
    if message.source == message.target:
        raise MeshcostError(f"{where}: rank {message.source} sends to itself.")
    try:
        return held[message.source][cell]
    except KeyError:
        raise MeshcostError(
            f"{where}: {message} sends cell {cell}, which its source does not hold."
        ) from None


def count(steps: Steps) -> Tally:
    """Add up a schedule, message by message.

    >>> steps = Steps("send", 2, (5,), (frozenset({0}), frozenset()), ((), (0,)), ((Message(0, 1, (0,), add=False),),))
    >>> count(steps).moved, count(steps).total
    (((5, 0), (0, 5)), 5)
    """
    sent, received, added = Counter[int](), Counter[int](), Counter[int]()
    for message in _messages(steps):
        size = steps.size(message)
        sent[message.source] += size
        received[message.target] += size
        added[message.target] += size * message.add
    each = range(steps.ranks)
    moved = tuple((sent[rank], received[rank]) for rank in each)
    return Tally(
        moved, tuple(added[rank] for rank in each), len(steps.rounds), sum(sent[rank] for rank in each)
    )


def ports(steps: Steps) -> Ports:
    """Count the messages of the busiest rank in the busiest round; a switch has a port for everybody."""
    most = [0, 0]
    for messages in steps.rounds:
        for side, ends in enumerate(([x.source for x in messages], [x.target for x in messages])):
            busy = Counter(end for end in ends if end < steps.ranks)
            most[side] = max([most[side], *busy.values()])
    return Ports(*most)


def _messages(steps: Steps) -> Iterator[Message]:
    for messages in steps.rounds:
        yield from messages
