"""Failures in one sentence: which rank, in which operation, why, and what to do."""

import signal
from dataclasses import dataclass, field

_SHARED_MEMORY = "Look at df -h /dev/shm; in a container, start it with --shm-size=1g."
#: What usually ends a process in this way.
_CAUSES = {
    "SIGKILL": "Often the kernel does this when memory is short: use fewer ranks or a smaller size.",
    "SIGBUS": f"Often shared memory is too small. {_SHARED_MEMORY}",
}


@dataclass
class Trouble:
    """What is known while an answer is waited for.

    ``raised`` holds what ranks say of themselves, ``lost_peer`` what those say that only noticed that another one is
    gone; ``ended`` exit statuses, ``gone`` ranks (-1: their nursery, whose exit status is ``starter``) that have hung up;
    ``stages`` how far ranks have come in the call (1: entered, 2: warmed up, 3: done), ``missing`` those that never
    answered, ``stopped`` those of them that the system says do not run, each with what stopped it.
    """

    what: str
    seconds: float
    expected: set[int] = field(default_factory=set)
    raised: dict[int, str] = field(default_factory=dict)
    lost_peer: dict[int, str] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    stages: dict[int, int] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    stopped: dict[int, str] = field(default_factory=dict)
    starter: int | None = None
    closing: bool = False

    @property
    def found(self) -> bool:
        """Whether something has gone wrong already."""
        return bool(self.raised or self.lost_peer or self.ended or self.gone)


def explain(trouble: Trouble) -> str:
    """Say what went wrong: the first cause, not what followed from it.

    >>> explain(Trouble("all_reduce of 4 B over 2 ranks", 5, ended={1: -9}, lost_peer={0: "closed"}))
    'rank 1 was ended by SIGKILL in all_reduce of 4 B over 2 ranks. Often the kernel does this when memory ...'
    """
    for rank, status in sorted(trouble.ended.items()):
        return _ended(rank, status, trouble.what)
    for rank, why in sorted(trouble.raised.items()):
        return sentence_of(rank, why, trouble.what)
    if -1 in trouble.gone:
        return _starter_ended(trouble.starter, trouble.what)
    for rank in sorted(trouble.gone):
        return f"rank {rank} went away in {trouble.what}."
    behind = _behind(trouble)
    if behind:
        return f"{_halted(trouble)}{_named(behind)} did not come to {_in_time(trouble)}."
    for rank, why in sorted(trouble.lost_peer.items()):
        return f"rank {rank} lost another one in {trouble.what}: {why}."
    return f"{_halted(trouble)}{_named(trouble.missing)} did not finish {_in_time(trouble)}."


def _in_time(trouble: Trouble) -> str:
    return f"{trouble.what} within {trouble.seconds:g} s (--timeout)"


def _halted(trouble: Trouble) -> str:
    """Name the ranks that do not run: the others only wait for them. Empty if there are none."""
    said = []
    for how in dict.fromkeys(trouble.stopped.values()):
        ranks = {rank for rank, by in trouble.stopped.items() if by == how}
        said.append(f"{_named(ranks)} {'are' if len(ranks) > 1 else 'is'} stopped ({how}): ")
    return "".join(said)


def _starter_ended(status: int | None, what: str) -> str:
    """Say what became of the process that starts the ranks, and why, as far as its exit status tells."""
    who = "the process that starts the ranks"
    if status is not None and status < 0:
        return _by_signal(who, -status, what)
    return f"{who} ended in {what}; python -c 'import torch' may say why."


def _behind(trouble: Trouble) -> set[int]:
    """Ranks that the others wait for: those that have come less far; empty if all have come equally far."""
    reached = {rank: trouble.stages.get(rank, 0) for rank in trouble.missing}
    least, most = min(reached.values(), default=0), max(trouble.stages.values(), default=0)
    return {rank for rank, stage in reached.items() if stage == least} if least < most else set()


def _ended(rank: int, status: int, what: str) -> str:
    if status >= 0:
        return f"rank {rank} exited with status {status} in {what}."
    return _by_signal(f"rank {rank}", -status, what)


def _by_signal(who: str, number: int, what: str) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    return f"{who} was ended by {name} in {what}. {_CAUSES.get(name, '')}".rstrip()


def sentence_of(rank: int, why: str, what: str) -> str:
    """Say what a rank says of itself, with the way out where it is known."""
    why = next((line for line in why.splitlines() if line.strip()), "it did not say why")
    lowered = why.lower()
    if "address already in use" in lowered or "eaddrinuse" in lowered:
        return f"rank {rank} failed in {what}: the port is in use. Choose another one, or 0 for any free one."
    if "no space left" in lowered or "shared memory" in lowered:
        return f"rank {rank} failed in {what}: shared memory is too small. {_SHARED_MEMORY}"
    return f"rank {rank} failed in {what}: {why.rstrip('.')}."


def _named(ranks: set[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, sorted(ranks)))}"
