"""What is measured, and whether this machine can hold it. Knows no torch."""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from meshcost.collectives import ALGORITHMS
from meshcost.collectives.gloo import Traffic, traffic
from meshcost.collectives.schedule import Steps
from meshcost.errors import ExecutionError
from meshcost.units import human_bytes

#: All that ``verify`` runs unless told otherwise, from one message to a message between every two.
OPERATIONS = (
    "send_recv",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
    "barrier",
)
RANKS = (2, 4)
SIZES = (64 * 1024, 2**20, 8 * 2**20)
ITEM_BYTES = 4
#: Memory of torch itself, and of one rank beside its buffers. Forked ranks share torch; elsewhere each loads its own.
SHARED_BYTES = 300_000_000
RANK_BYTES = 96_000_000 if sys.platform == "linux" else SHARED_BYTES
#: Buffers of one call in units of its payload: input, output, and the copy that a reduce-scatter makes.
BUFFERS = 3
#: Share of the free memory that may be used.
_USABLE = 0.8
#: Operations whose payload is a chunk for each rank.
SPLIT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
MOST_RANKS = 1024
#: Sizes that a sentence names.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One call to measure: an operation among so many ranks on so many bytes.

    ``algorithm`` is ``native`` for the collective of the library itself, or the name of an algorithm of the shelf,
    whose schedule is then interpreted over point-to-point messages. ``members`` are the ranks of the world that take
    part; ``root`` is a position among them, ``item_bytes`` one element. ``on`` says which axes of a job's mesh they lie
    along; whatever else lies there is the same call.
    """

    op: str
    members: tuple[int, ...]
    payload_bytes: int
    algorithm: str = "native"
    root: int = 0
    on: str = field(default="", compare=False)
    item_bytes: int = ITEM_BYTES

    @property
    def ranks(self) -> int:
        """Ranks that take part."""
        return len(self.members)

    @property
    def sentence(self) -> str:
        """Name the call as errors do."""
        how = "" if self.algorithm == "native" else f" as {self.algorithm}"
        size = f" of {human_bytes(self.payload_bytes)}" if self.payload_bytes else ""
        return f"{self.op}{how}{size} over {self.ranks} ranks"

    def predict(self, position: int) -> Traffic:
        """What Gloo moves on this position, frames included."""
        if self.algorithm != "native":
            return scheduled_traffic(self, position)
        return traffic(
            self.op, position, ranks=self.ranks, payload_bytes=self.payload_bytes, item_bytes=self.item_bytes,
            root=self.root,
        )  # fmt: skip


@cache
def steps_of(algorithm: str, op: str, ranks: int, elements: int) -> Steps:
    """The schedule of an algorithm of the shelf, as data."""
    return ALGORITHMS[algorithm].steps(op, ranks, elements)


def scheduled_traffic(case: Case, position: int) -> Traffic:
    """What a schedule moves on this position: the closed form's bytes, and a frame for each message of the schedule."""
    elements = case.payload_bytes // ITEM_BYTES
    form = ALGORITHMS[case.algorithm].position(case.op, position, case.ranks, elements)
    messages = [x for each in steps_of(case.algorithm, case.op, case.ranks, elements).rounds for x in each]
    return Traffic(
        form[0] * ITEM_BYTES,
        form[1] * ITEM_BYTES,
        sum(message.source == position for message in messages),
        sum(message.target == position for message in messages),
    )


def schedules(
    operations: Iterable[str] = OPERATIONS, ranks: Iterable[int] = RANKS, sizes: Iterable[int] = SIZES
) -> list[Case]:
    """List a call for every algorithm of the shelf whose schedule ranks alone can play; one with a switch cannot be."""
    return [
        replace(case, algorithm=name)
        for case in cases(operations, ranks, sizes)
        for name, algorithm in ALGORITHMS.items()
        if case.op in algorithm.forms
        and not steps_of(name, case.op, case.ranks, case.payload_bytes // ITEM_BYTES).switch
    ]


def cases(
    operations: Iterable[str] = OPERATIONS, ranks: Iterable[int] = RANKS, sizes: Iterable[int] = SIZES
) -> list[Case]:
    """List every call: each operation, for each number of ranks, at each size in bytes.

    A size becomes the nearest smaller one that has whole elements, and equal chunks where the operation needs them.
    Raises ExecutionError for an operation, a number of ranks or a size that cannot be.

    >>> [(x.op, x.ranks, x.payload_bytes) for x in cases(["all_gather", "barrier"], [3], [1000, 2000])]
    [('all_gather', 3, 996), ('all_gather', 3, 1992), ('barrier', 3, 0)]
    """
    operations, ranks, sizes = tuple(operations), tuple(ranks), tuple(sizes)
    problems = [
        *(_unknown(op) for op in operations if op not in OPERATIONS),
        *(f"--ranks {n}: choose 2 to {MOST_RANKS}." for n in ranks if not 2 <= n <= MOST_RANKS),
    ]
    if not problems:
        problems = [problem for size in sizes if (problem := _too_small(size, operations, ranks))]
    if problems:
        raise ExecutionError(problems)
    return [
        Case(op, tuple(range(number)), whole(op, number, size))
        for number in ranks
        for op in operations
        for size in ((0,) if op == "barrier" else sizes)
    ]


def _unknown(op: str) -> str:
    near = get_close_matches(op, OPERATIONS, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"--op {op}: not an operation. Choose {', '.join(OPERATIONS)}.{hint}"


def _too_small(size: int, operations: Iterable[str], ranks: Iterable[int]) -> str:
    """Say why a size cannot be, for whichever call needs most; empty if it can."""
    needed = [
        (ITEM_BYTES * (n if op in SPLIT else 1), op, n) for op in operations for n in ranks if op != "barrier"
    ]
    least, op, number = max(needed, default=(0, "", 0))
    if size >= least:
        return ""
    what = f"{ITEM_BYTES} B for each of {number} ranks" if op in SPLIT else f"an element of {ITEM_BYTES} B"
    return f"--size {size}: {op} needs {what}. Choose {least} or more."


def whole(op: str, ranks: int, size: int) -> int:
    """Round a size down to whole elements, and to equal chunks where the operation needs them."""
    step = ITEM_BYTES * (ranks if op in SPLIT else 1)
    return size // step * step


def cut_sizes(planned: Iterable[Case], sizes: Iterable[int]) -> str:
    """Say which of the sizes asked for are not measured as they are; empty if all are.

    >>> cut_sizes(cases(["all_gather"], [3], [1200, 1000]), [1200, 1000])
    '--size: 1,000 B becomes 996 B: whole elements of 4 B, in equal chunks where an operation needs them.'
    """
    measured = dict.fromkeys((x.op, x.ranks) for x in planned if x.payload_bytes)
    pairs = dict.fromkeys((size, whole(op, n, size)) for size in sizes for op, n in measured)
    changed = [f"{size:,} B becomes {got:,} B" for size, got in pairs if got != size]
    if not changed:
        return ""
    named = changed if len(changed) <= _NAMED else [*changed[:_NAMED], "and so on"]
    return f"--size: {', '.join(named)}: whole elements of {ITEM_BYTES} B, in equal chunks where an operation needs them."


def needed_bytes(ranks: int, payload_bytes: int) -> int:
    """Memory that a crew of ranks takes at most while it works on one payload."""
    return SHARED_BYTES + ranks * (RANK_BYTES + BUFFERS * payload_bytes)


def fitting_ranks(free: int, payload_bytes: int) -> int:
    """The most ranks that work on such a payload in the part of the free memory that may be used."""
    return max(0, int(free * _USABLE) - SHARED_BYTES) // (RANK_BYTES + BUFFERS * payload_bytes)


def free_bytes() -> int:
    """Memory that may still be taken on this machine and, on Linux, in this control group."""
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    memory = Path("/proc/meminfo")
    if memory.exists():
        lines = dict(line.split(":", 1) for line in memory.read_text(encoding="ascii").splitlines())
        free = [int(lines["MemAvailable"].split()[0]) * 1024]
    try:
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        if limit != "max":
            free.append(int(limit) - int((group / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):  # no control group, or not version 2
        pass
    return min(free)


def bound(planned: Sequence[Case], *, world: int, free: int | None = None) -> str:
    """Say how much memory the calls take. Raises ExecutionError, with what would fit, if that is too much.

    >>> bound(cases(["all_reduce"], [2], [2**20]), world=2, free=8 * 10**9)
    '2 ranks take up to 498.3 MB of memory; 8 GB are free.'
    """
    free = free_bytes() if free is None else free
    payload = max((case.payload_bytes for case in planned), default=0)
    needed, usable = needed_bytes(world, payload), int(free * _USABLE)
    if needed > usable:
        fitting = fitting_ranks(free, payload)
        smaller = max(0, ((usable - SHARED_BYTES) // world - RANK_BYTES) // BUFFERS)
        advice = [f"--ranks {fitting}"] if fitting >= 2 else []
        advice += [f"--size {smaller}"] if smaller >= ITEM_BYTES * world else []
        raise ExecutionError(
            f"{world} ranks with {human_bytes(payload)} each take up to {human_bytes(needed)} of memory, and only "
            f"{human_bytes(usable)} may be used here. Choose {' or '.join(advice) or 'a larger machine'}."
        )
    return f"{world} ranks take up to {human_bytes(needed)} of memory; {human_bytes(free)} are free."
