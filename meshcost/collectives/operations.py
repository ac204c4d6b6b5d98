"""The operations: what each one does to the buffers of a group, whatever algorithm performs it.

Seven are what a training step is made of; gather, scatter and barrier are beside them.

A buffer of S bytes is drawn as n cells of S / n bytes. A cell holds contributions: ``(2, 0)`` is what rank 2 put into
chunk 0, and a cell with several contributions is their sum. ``before`` and ``after`` are the whole meaning of an
operation, as data; ``apply`` runs one on any state, so that two operations can be put after each other and compared
with a third. Rank 0 is the root of a broadcast or reduce, and the sender of a message to rank 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from sympy import Expr, Integer, simplify

from meshcost.collectives.ring import RING
from meshcost.errors import MeshcostError, UnknownAlgorithm
from meshcost.symbols import S, n

Contribution = tuple[int, int]
Cell = frozenset[Contribution] | None
State = tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective operation.

    ``contributes`` and ``ends_with`` are the logical view in bytes: what ``contributor`` puts in, what ``receiver`` has
    at the end. ``lower_bound`` is the least that the busiest rank must ``bound_verb``, whatever the algorithm, as long as
    only ranks add and copy (a switch that reduces can do better). ``calls`` are its names in a ledger.

    >>> operation("all_gather").before(2)
    ((frozenset({(0, 0)}), None), (None, frozenset({(1, 1)})))
    """

    name: str
    meaning: str
    brief: str
    contributor: str
    contributes: Expr
    receiver: str
    ends_with: Expr
    lower_bound: Expr
    bound_reason: str
    bound_source: str
    torch: str
    nccl: str
    mpi: str
    holds: Callable[[int, int], bool]
    result: Callable[[int, int, int], frozenset[Contribution]]
    calls: tuple[str, ...]
    bound_verb: str = "send"

    @property
    def busbw_factor(self) -> Expr:
        """Factor of nccl-tests: busbw = S / time * factor, the speed of a link that carries the lower bound.

        >>> operation("all_gather").busbw_factor
        (n - 1)/n
        """
        return self.lower_bound / S

    def before(self, ranks: int) -> State:
        """What each rank holds when the operation starts: for each rank, one cell per chunk, None if empty."""
        each = range(ranks)
        return tuple(tuple(frozenset({(i, c)}) if self.holds(i, c) else None for c in each) for i in each)

    def after(self, ranks: int) -> State:
        """What each rank holds when it is done; None where the operation promises nothing.

        >>> sorted(operation("all_reduce").after(3)[0][2])
        [(0, 2), (1, 2), (2, 2)]
        """
        each = range(ranks)
        return tuple(tuple(self.result(i, c, ranks) or None for c in each) for i in each)


def apply(step: Operation, state: State) -> State:
    """Run an operation on any state: its ``after``, with each contribution replaced by what that rank really held.

    Raises MeshcostError if a rank holds nothing where the operation needs something, or if a sum would count one
    contribution twice.

    >>> gather = operation("all_gather")
    >>> apply(gather, gather.before(4)) == gather.after(4)
    True
    """
    return tuple(tuple(_joined(step, cell, state) for cell in row) for row in step.after(len(state)))


def _joined(step: Operation, cell: Cell, state: State) -> Cell:
    if cell is None:
        return None
    joined: frozenset[Contribution] = frozenset()
    for rank, chunk in sorted(cell):
        held = state[rank][chunk]
        if held is None:
            raise MeshcostError(f"{step.name} needs chunk {chunk} of rank {rank}, which is empty.")
        if joined & held:
            raise MeshcostError(f"{step.name} would count chunk {chunk} of rank {rank} twice.")
        joined |= held
    return joined


def compose(first: Operation, second: Operation, ranks: int) -> State:
    """What a group holds after two operations, the second on what the first leaves.

    >>> halves = operation("reduce_scatter"), operation("all_gather")
    >>> compose(*halves, ranks=4) == operation("all_reduce").after(4)
    True
    """
    return apply(second, first.after(ranks))


def ring_difference() -> Expr:
    """Bytes by which a ring all-reduce sends more than a reduce-scatter and an all-gather: none.

    >>> ring_difference()
    0
    """
    forms = RING.forms
    return simplify(forms["all_reduce"].sent - forms["reduce_scatter"].sent - forms["all_gather"].sent)


def operation(name: str) -> Operation:
    """Find an operation by its name; ``send`` means ``send_recv``. Raises UnknownAlgorithm if there is none.

    >>> operation("all-reduce").name, operation("send").name
    ('all_reduce', 'send_recv')
    """
    asked = name.strip().lower().replace("-", "_")
    known = {**OPERATIONS, **OTHERS}
    for candidate in known.values():
        if asked == candidate.name or asked in candidate.calls:
            return candidate
    near = get_close_matches(asked, known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UnknownAlgorithm(f"{name!r} is not an operation: choose from {', '.join(known)}.{hint}")


def _nothing(rank: int, chunk: int, ranks: int) -> frozenset[Contribution]:
    return frozenset()


def _of_root(rank: int, chunk: int, ranks: int) -> frozenset[Contribution]:
    return frozenset({(0, chunk)})


def _sum(rank: int, chunk: int, ranks: int) -> frozenset[Contribution]:
    return frozenset((i, chunk) for i in range(ranks))


_ALL_BUT_ONE = S * (n - 1) / n
_CHAN = "Chan et al. 2007, lower bounds"

SEND_RECV = Operation(
    name="send_recv",
    meaning="One rank hands a message to one other rank.",
    brief="a message to one rank",
    contributor="the sender",
    contributes=S,
    receiver="the receiver",
    ends_with=S,
    lower_bound=S,
    bound_reason="The message must leave its sender.",
    bound_source="by definition",
    torch="send / recv, isend / irecv, batch_isend_irecv",
    nccl="ncclSend / ncclRecv",
    mpi="MPI_Send / MPI_Recv",
    holds=lambda rank, chunk: rank == 0,
    result=lambda rank, chunk, ranks: (_of_root if rank < 2 else _nothing)(rank, chunk, ranks),
    calls=("send", "recv"),
)

BROADCAST = Operation(
    name="broadcast",
    meaning="One rank, the root, gives everybody a copy of its buffer.",
    brief="one buffer, copied to all",
    contributor="the root",
    contributes=S,
    receiver="each rank",
    ends_with=S,
    lower_bound=S,
    bound_reason="Every byte must leave the root once; others can pass it on.",
    bound_source=_CHAN,
    torch="broadcast",
    nccl="ncclBroadcast",
    mpi="MPI_Bcast",
    holds=lambda rank, chunk: rank == 0,
    result=_of_root,
    calls=("broadcast",),
)

REDUCE = Operation(
    name="reduce",
    meaning="The buffers of all ranks are added up, and one rank, the root, gets the sum.",
    brief="all buffers, summed on one rank",
    contributor="each rank",
    contributes=S,
    receiver="the root",
    ends_with=S,
    lower_bound=S,
    bound_reason="What a rank contributes must leave it, alone or in a sum, unless it is the root.",
    bound_source=_CHAN,
    torch="reduce",
    nccl="ncclReduce",
    mpi="MPI_Reduce",
    holds=lambda rank, chunk: True,
    result=lambda rank, chunk, ranks: (_nothing if rank else _sum)(rank, chunk, ranks),
    calls=("reduce",),
)

ALL_REDUCE = Operation(
    name="all_reduce",
    meaning="The buffers of all ranks are added up, and every rank gets the whole sum.",
    brief="all buffers, summed on every rank",
    contributor="each rank",
    contributes=S,
    receiver="each rank",
    ends_with=S,
    lower_bound=2 * _ALL_BUT_ONE,
    bound_reason="Each element takes n - 1 sends to be summed and n - 1 to be spread; n ranks share them.",
    bound_source="Patarasuk and Yuan 2009",
    torch="all_reduce",
    nccl="ncclAllReduce",
    mpi="MPI_Allreduce",
    holds=lambda rank, chunk: True,
    result=_sum,
    calls=("all_reduce",),
)

REDUCE_SCATTER = Operation(
    name="reduce_scatter",
    meaning="The buffers of all ranks are added up, and each rank gets its own chunk of the sum.",
    brief="all buffers, summed, one chunk each",
    contributor="each rank",
    contributes=S,
    receiver="each rank",
    ends_with=S / n,
    lower_bound=_ALL_BUT_ONE,
    bound_reason="What a rank contributes to the n - 1 chunks of others must leave it.",
    bound_source=_CHAN,
    torch="reduce_scatter_tensor (lists: reduce_scatter)",
    nccl="ncclReduceScatter",
    mpi="MPI_Reduce_scatter_block",
    holds=lambda rank, chunk: True,
    result=lambda rank, chunk, ranks: (_sum if rank == chunk else _nothing)(rank, chunk, ranks),
    calls=("reduce_scatter",),
)

ALL_GATHER = Operation(
    name="all_gather",
    meaning="Each rank has one chunk, and every rank gets all chunks, side by side.",
    brief="one chunk each, copied to all",
    contributor="each rank",
    contributes=S / n,
    receiver="each rank",
    ends_with=S,
    lower_bound=_ALL_BUT_ONE,
    bound_reason="Each rank lacks n - 1 chunks, which somebody must send; n ranks share the work.",
    bound_source=_CHAN,
    torch="all_gather_into_tensor (lists: all_gather)",
    nccl="ncclAllGather",
    mpi="MPI_Allgather",
    holds=lambda rank, chunk: rank == chunk,
    result=lambda rank, chunk, ranks: frozenset({(chunk, chunk)}),
    calls=("all_gather",),
)

ALL_TO_ALL = Operation(
    name="all_to_all",
    meaning="Each rank has one chunk for every rank, and each gets the chunks meant for it.",
    brief="a chunk from each to each",
    contributor="each rank",
    contributes=S,
    receiver="each rank",
    ends_with=S,
    lower_bound=_ALL_BUT_ONE,
    bound_reason="The n - 1 chunks that a rank holds for others must leave it.",
    bound_source="by definition",
    torch="all_to_all_single (lists: all_to_all)",
    nccl="ncclSend / ncclRecv in one group; ncclAlltoAll since 2.28",
    mpi="MPI_Alltoall",
    holds=lambda rank, chunk: True,
    result=lambda rank, chunk, ranks: frozenset({(chunk, rank)}),
    calls=("all_to_all",),
)

GATHER = Operation(
    name="gather",
    meaning="Each rank has one chunk, and one rank, the root, gets all chunks, side by side.",
    brief="one chunk each, collected on one rank",
    contributor="each rank",
    contributes=S / n,
    receiver="the root",
    ends_with=S,
    lower_bound=_ALL_BUT_ONE,
    bound_verb="receive",
    bound_reason="The root lacks n - 1 chunks, and all of them must reach it.",
    bound_source="by definition",
    torch="gather",
    nccl="ncclSend / ncclRecv in one group; ncclGather since 2.28",
    mpi="MPI_Gather",
    holds=lambda rank, chunk: rank == chunk,
    result=lambda rank, chunk, ranks: frozenset({(chunk, chunk)} if rank == 0 else ()),
    calls=("gather",),
)

SCATTER = Operation(
    name="scatter",
    meaning="One rank, the root, has a chunk for every rank, and each gets its own.",
    brief="a chunk for each, from one rank",
    contributor="the root",
    contributes=S,
    receiver="each rank",
    ends_with=S / n,
    lower_bound=_ALL_BUT_ONE,
    bound_reason="The n - 1 chunks of others must leave the root.",
    bound_source="by definition",
    torch="scatter",
    nccl="ncclSend / ncclRecv in one group; ncclScatter since 2.28",
    mpi="MPI_Scatter",
    holds=lambda rank, chunk: rank == 0,
    result=lambda rank, chunk, ranks: frozenset({(0, chunk)} if rank == chunk else ()),
    calls=("scatter",),
)

BARRIER = Operation(
    name="barrier",
    meaning="Nobody goes on before everybody has come; no data move.",
    brief="wait for all",
    contributor="each rank",
    contributes=Integer(0),
    receiver="each rank",
    ends_with=Integer(0),
    lower_bound=Integer(0),
    bound_reason="Only that a rank has come is told, in messages without data.",
    bound_source="by definition",
    torch="barrier",
    nccl="none: torch makes it an all-reduce of one element",
    mpi="MPI_Barrier",
    holds=lambda rank, chunk: False,
    result=_nothing,
    calls=("barrier",),
)

#: From one message between two ranks to a message between every two.
_ALL = (SEND_RECV, BROADCAST, REDUCE, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL)
OPERATIONS: Mapping[str, Operation] = MappingProxyType({x.name: x for x in _ALL})
#: On the shelf too, but in no training step of a bill.
OTHERS: Mapping[str, Operation] = MappingProxyType({x.name: x for x in (GATHER, SCATTER, BARRIER)})
