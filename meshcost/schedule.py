"""Pipeline schedules as data: which model chunk lives on which rank, and in which order a rank computes.

An action is one forward or backward pass of one chunk over one micro-batch: ``Action("F", 2, 0)`` is the forward of
virtual stage 2 over micro-batch 0. GPipe, 1F1B and interleaved 1F1B have a fixed order (Narayanan et al. 2021,
section 2.2). The V-shaped and bidirectional schedules are given in the order in which a greedy machine with equal
forward and backward times runs them: the placement and the number of messages are theirs, the order is one that works.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Literal, NamedTuple

Placement = Literal["loop", "vee", "mirror"]

#: Where the chunks of a schedule live. ``loop``: virtual stage k on rank k mod p. ``vee``: down and back up again, the
#: last rank holds two neighbours. ``mirror``: rank i holds stages i and p - 1 - i, fed from both ends.
PLACEMENT: Mapping[str, Placement] = MappingProxyType(
    {
        "gpipe": "loop",
        "1f1b": "loop",
        "interleaved_1f1b": "loop",
        "zb_h1": "loop",
        "zb_h2": "loop",
        "interleaved_zb": "loop",
        "zbv": "vee",
        "dualpipev": "vee",
        "dualpipe": "mirror",
    }
)


class Action(NamedTuple):
    """One pass: ``F`` or ``B``, of a virtual stage, over a micro-batch.

    >>> str(Action("B", 3, 0))
    '3B0'
    """

    kind: Literal["F", "B"]
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        """Write the action as PyTorch does: stage, kind, micro-batch."""
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A named schedule over ``ranks`` pipeline ranks, ``chunks`` model chunks on each, and ``micro_batches``.

    >>> " ".join(map(str, Schedule("1f1b", ranks=2, chunks=1, micro_batches=2).actions(0)))
    '0F0 0F1 0B0 0B1'
    """

    name: str
    ranks: int
    chunks: int
    micro_batches: int

    @property
    def placement(self) -> Placement:
        """How chunks are placed on ranks."""
        return PLACEMENT[self.name]

    @property
    def virtual_stages(self) -> int:
        """Number of distinct model chunks, in model order."""
        return self.ranks if self.placement == "mirror" else self.ranks * self.chunks

    def hosted(self, rank: int) -> tuple[int, ...]:
        """Virtual stages that live on a rank, ascending.

        >>> Schedule("zbv", 4, 2, 8).hosted(0), Schedule("dualpipe", 4, 2, 8).hosted(0)
        ((0, 7), (0, 3))
        """
        if self.placement == "vee":
            return (rank, 2 * self.ranks - 1 - rank)
        if self.placement == "mirror":
            return tuple(sorted((rank, self.ranks - 1 - rank)))
        return tuple(range(rank, self.virtual_stages, self.ranks))

    def host(self, stage: int, micro_batch: int = 0) -> int:
        """Rank on which a virtual stage runs a micro-batch."""
        if self.placement == "vee":
            return min(stage, 2 * self.ranks - 1 - stage)
        if self.placement == "mirror":
            return stage if micro_batch < self.micro_batches // 2 else self.ranks - 1 - stage
        return stage % self.ranks

    def tag(self, action: Action) -> int:
        """Number of the message that a pass sends, unlike that of any other in the step."""
        return 2 * (action.micro_batch * self.virtual_stages + action.stage) + (action.kind == "B")

    def actions(self, rank: int) -> Iterator[Action]:
        """Yield the passes of one rank in the order in which it runs them."""
        if self.placement != "loop":
            yield from _greedy(self)[rank]
        elif self.name == "gpipe":
            yield from self._in_order(rank, "F")
            yield from self._in_order(rank, "B")
        else:
            yield from self._one_forward_one_backward(rank)

    def _in_order(self, rank: int, kind: Literal["F", "B"]) -> Iterator[Action]:
        """Micro-batches in rounds of one per rank; within a round, one chunk after the other."""
        hosted = self.hosted(rank) if kind == "F" else tuple(reversed(self.hosted(rank)))
        size = self.ranks if len(hosted) > 1 else self.micro_batches
        for start in range(0, self.micro_batches, size):
            for stage in hosted:
                for micro_batch in range(start, min(start + size, self.micro_batches)):
                    yield Action(kind, stage, micro_batch)

    def _one_forward_one_backward(self, rank: int) -> Iterator[Action]:
        forward, backward = self._in_order(rank, "F"), self._in_order(rank, "B")
        for _ in range(min(self._warm_up(rank), self.micro_batches * self.chunks)):
            yield next(forward)
        for action in forward:
            yield action
            yield next(backward)
        yield from backward

    def _warm_up(self, rank: int) -> int:
        behind = self.ranks - 1 - rank
        if self.chunks > 1:
            return 2 * behind + (self.chunks - 1) * self.ranks
        return 2 * behind if self.name == "zb_h2" else behind


@lru_cache(maxsize=1)
def _greedy(schedule: Schedule) -> tuple[tuple[Action, ...], ...]:
    """Run the schedule on a machine where each pass takes one tick; backward first, then the deepest chunk."""
    last = schedule.virtual_stages - 1
    waiting: list[list[_Turn]] = [[] for _ in range(schedule.ranks)]
    for micro_batch in range(schedule.micro_batches):
        heappush(waiting[schedule.host(0, micro_batch)], _turn(Action("F", 0, micro_batch)))
    order: list[list[Action]] = [[] for _ in range(schedule.ranks)]
    while any(waiting):
        ran = [(rank, heappop(ready)[-1]) for rank, ready in enumerate(waiting) if ready]
        for rank, action in ran:
            order[rank].append(action)
            follower = _follower(action, last)
            if follower is not None:
                heappush(waiting[schedule.host(follower.stage, follower.micro_batch)], _turn(follower))
    return tuple(map(tuple, order))


#: What decides whose turn it is, and whose.
_Turn = tuple[bool, int, int, Action]


def _turn(action: Action) -> _Turn:
    return action.kind == "F", action.micro_batch, -action.stage, action


def _follower(action: Action, last: int) -> Action | None:
    if action.kind == "F":
        at_end = action.stage == last
        return Action("B", last, action.micro_batch) if at_end else action._replace(stage=action.stage + 1)
    return None if action.stage == 0 else action._replace(stage=action.stage - 1)
