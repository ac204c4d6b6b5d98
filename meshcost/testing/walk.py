"""The law of the wire: all ranks run their calls at once, and nobody waits for ever or gets the wrong bytes."""

from collections import deque
from dataclasses import dataclass, field

from meshcost.job import Job
from meshcost.ledger import Ledger
from meshcost.testing.ledgers import priced_ledger, require
from meshcost.unroll import Call

#: Calls of all ranks together that ``check`` is willing to walk through.
LARGEST_WALK = 20_000

_MESSAGES = ("send", "recv")


def calls_in_all(subject: Job | Ledger) -> int:
    """Count the calls of all ranks in one step, without making them.

    >>> calls_in_all(Job(model="gpt2", parallel={"data": {"size": 2}}, batch={"sequence": 8, "global_batch": 2}))
    4
    """
    ledger = priced_ledger(subject)
    ranks = ledger.mesh.world_size // ledger.mesh.stages
    return sum(sums.calls for sums in ledger.by_stage) * ranks


def messages_match(subject: Job | Ledger) -> None:
    """Run the calls of all ranks against each other: sends are buffered, everything else waits for its group.

    The k-th message with one tag from one rank to another is sent and received as the same one, all members of a group
    make the same calls in the same order, and everybody gets to the end. The time this takes grows with ``calls_in_all``.

    >>> messages_match(Job(model="gpt2", parallel={"pipeline": {"size": 2}}, batch={"sequence": 8, "global_batch": 2}))
    """
    ledger = priced_ledger(subject)
    _Machine([deque(ledger.calls(rank)) for rank in range(ledger.mesh.world_size)]).run()


@dataclass
class _Machine:
    """Ranks with the calls still to make, messages under way, and who waits in which group."""

    programs: list[deque[Call]]
    mail: dict[object, deque[Call]] = field(default_factory=dict)
    waiting: dict[tuple[int, ...], set[int]] = field(default_factory=dict)

    def run(self) -> None:
        """Let every rank go on as far as it can, until nobody can."""
        ready = deque(range(len(self.programs)))
        while ready:
            ready.extend(self._advance(ready.popleft()))
        for rank, left in enumerate(self.programs):
            require(not left, f"rank {rank} waits for ever in {left[0] if left else None}.")
        unread = sum(map(len, self.mail.values()))
        require(unread == 0, f"{unread} messages are never received.")

    def _advance(self, rank: int) -> set[int]:
        """Run one rank until it has to wait; returns the ranks that can go on because of it."""
        program, woken = self.programs[rank], set[int]()
        while program:
            call = program[0]
            if call.op == "send":
                self.mail.setdefault((call.ranks, call.tag), deque()).append(call)
                woken.add(call.ranks[1])
            elif call.op == "recv":
                if not self.mail.get((call.ranks, call.tag)):
                    return woken
                self._deliver(self.mail[call.ranks, call.tag].popleft(), call)
            else:
                return woken | self._meet(rank, call)
            program.popleft()
        return woken

    @staticmethod
    def _deliver(sent: Call, received: Call) -> None:
        same = (sent.in_bytes, *_about(sent)) == (received.out_bytes, *_about(received))
        require(same, f"a message is sent as {sent}, but received as {received}.")

    def _meet(self, rank: int, call: Call) -> set[int]:
        """Wait in a group; when all are there, all go on."""
        here = self.waiting.setdefault(call.ranks, set())
        here.add(rank)
        if len(here) < len(call.ranks):
            return set()
        calls = [self.programs[member].popleft() for member in call.ranks]
        for other in calls:
            require(_what(other) == _what(call), f"one group makes two calls at once: {call} and {other}.")
        del self.waiting[call.ranks]
        return set(call.ranks)


def _about(call: Call) -> tuple[object, ...]:
    """What both ends of a message have to agree on."""
    return call.dtype, call.phase, call.strategy, call.micro_batch


def _what(call: Call) -> tuple[object, ...]:
    """What all members of a group have to agree on."""
    size = max(call.in_bytes, call.out_bytes)
    return call.op, call.ranks, size, call.dtype, call.phase, call.strategy, call.why, call.micro_batch
