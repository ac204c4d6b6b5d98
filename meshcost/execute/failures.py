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
    gone; ``ended`` exit statuses, ``gone`` ranks (-1: their nursery) that have hung up; ``stages`` how far ranks
    have come in the call (1: entered, 2: warmed up, 3: done), ``missing`` those that never answered.
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
    for rank in sorted(trouble.gone - {-1}):
        return f"rank {rank} went away in {trouble.what}."
    if trouble.gone:
        return f"the process that starts the ranks ended in {trouble.what}; python -c 'import torch' may say why."
    behind = _behind(trouble)
    if behind:
        return f"{_named(behind)} did not come to {trouble.what} within {trouble.seconds:g} s (--timeout)."
    for rank, why in sorted(trouble.lost_peer.items()):
        return f"rank {rank} lost another one in {trouble.what}: {why}."
    return (
        f"{_named(trouble.missing)} did not finish {trouble.what} within {trouble.seconds:g} s (--timeout)."
    )


def _behind(trouble: Trouble) -> set[int]:
    """Ranks that the others wait for: those that have come less far; empty if all have come equally far."""
    reached = {rank: trouble.stages.get(rank, 0) for rank in trouble.missing}
    least, most = min(reached.values(), default=0), max(trouble.stages.values(), default=0)
    return {rank for rank, stage in reached.items() if stage == least} if least < most else set()


def _ended(rank: int, status: int, what: str) -> str:
    if status >= 0:
        return f"rank {rank} exited with status {status} in {what}."
    name = signal.Signals(-status).name
    return f"rank {rank} was ended by {name} in {what}. {_CAUSES.get(name, '')}".rstrip()


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
