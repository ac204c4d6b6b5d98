"""Gloo: what the library of that name really sends, rank by rank and to the byte, as counted on its sockets.

Two things differ from a textbook. A reduce-scatter runs as an all-reduce, so it sends 2 S (n - 1) / n. A buffer travels
in segments of at most 1 MiB, rounded up to whole elements, so ranks of one ring send unequal amounts when S does not
divide. And every message carries a frame: its sender adds two headers of 48 B, its receiver answers with one, together
144 B.

Source: gloo/allreduce.cc, reduce.cc, allgather.cc, alltoall.cc, broadcast.cc, gather.cc, scatter.cc, barrier.cc and
transport/tcp/pair.cc of facebookincubator/gloo, held against the kernel's byte counters under torch 2.13 (1 B to
64 MiB, 2 to 8 ranks). The published allreduce.cc skips only the last two segments of a turn; the library in the wheel
skips the whole last chunk, which is what stands here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sympy import Expr, Integer
from sympy.functions.elementary.miscellaneous import Min

from meshcost.errors import UnknownAlgorithm
from meshcost.formula import log2_ceiling
from meshcost.symbols import S, n

#: Bytes that a message adds on the side of its sender (a notice and a header) and of its receiver (a notice).
SENDER_FRAME, RECEIVER_FRAME = 96, 48
FRAME_BYTES = SENDER_FRAME + RECEIVER_FRAME
#: Which end adds how much of it, as pages say it.
ENDS = f"{SENDER_FRAME} by its sender, {RECEIVER_FRAME} by its receiver"
#: Largest segment of a reduction, in bytes (kMaxSegmentSize of gloo).
LARGEST_SEGMENT = 2**20

#: Bytes that the busiest rank sends, without frames, where S divides into segments.
SENT: Mapping[str, Expr] = MappingProxyType(
    {
        "all_reduce": 2 * S * (n - 1) / n,
        "reduce_scatter": 2 * S * (n - 1) / n,
        "all_gather": S * (n - 1) / n,
        "all_to_all": S * (n - 1) / n,
        "broadcast": S * log2_ceiling(n),
        "reduce": S + S / n - Min(S / n, 2 * LARGEST_SEGMENT),
        "gather": S / n,
        "scatter": S * (n - 1) / n,
        "send": S,
        "recv": Integer(0),
        "barrier": Integer(0),
    }
)


def turning_point(sent: Expr) -> tuple[Expr, Expr, Expr] | None:
    """Split a form that takes the lesser of a share of S and some bytes: up to which S it is what, and what above.

    >>> turning_point(SENT["reduce"]), turning_point(SENT["all_reduce"])
    ((2097152*n, S, S + S/n - 2097152), None)
    """
    for lesser in sent.atoms(Min):
        most, share = sorted(lesser.args, key=lambda part: part.has(S))
        return S * most / share, sent.xreplace({lesser: share}), sent.xreplace({lesser: most})
    return None


#: How it does each operation.
HOW: Mapping[str, str] = MappingProxyType(
    {
        "all_reduce": "a ring, in segments of at most 1 MiB",
        "reduce_scatter": "as an all-reduce, of which each rank keeps its chunk",
        "all_gather": "a ring, each chunk in two halves",
        "all_to_all": "pairwise, one message to each other rank",
        "broadcast": "a binomial tree",
        "reduce": "a turn of a ring that leaves out two segments of at most 1 MiB, then each chunk goes to the root",
        "gather": "every rank to the root at once",
        "scatter": "the root to every rank at once",
        "send_recv": "one message",
        "barrier": "dissemination: messages without data, 2**k far in round k",
    }
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one rank puts on the wire and takes off it: payload in bytes, and messages.

    >>> Traffic(100, 0, sent_messages=1).sent_bytes
    196
    """

    sent_payload: int = 0
    received_payload: int = 0
    sent_messages: int = 0
    received_messages: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        """Add field by field."""
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in Traffic.__slots__))

    @property
    def sent_bytes(self) -> int:
        """Bytes sent, frames included."""
        frames = SENDER_FRAME * self.sent_messages + RECEIVER_FRAME * self.received_messages
        return self.sent_payload + frames

    @property
    def received_bytes(self) -> int:
        """Bytes received, frames included."""
        frames = SENDER_FRAME * self.received_messages + RECEIVER_FRAME * self.sent_messages
        return self.received_payload + frames


def traffic(
    op: str, at: int, *, ranks: int, payload_bytes: int, item_bytes: int = 4, root: int = 0
) -> Traffic:
    """Say what position ``at`` of a group moves in one call.

    ``payload_bytes`` is the S of nccl-tests, ``item_bytes`` one element, ``root`` the position that a rooted operation
    starts or ends at, and the sender of a ``send_recv``, which goes to the next position; ``shift`` sends from every
    position to the next, and ``rotate`` is an all-to-all that does so. Raises UnknownAlgorithm for an operation that Gloo
    does not have.

    >>> traffic("all_reduce", 0, ranks=4, payload_bytes=156).sent_bytes    # small calls are mostly frames
    1964
    """
    if op not in _RULES:
        raise UnknownAlgorithm(f"Gloo has no {op!r}: choose from {', '.join(_RULES)}.")
    if ranks == 1 or (not payload_bytes and op != "barrier"):
        return Traffic()
    return _RULES[op](_Call(at, ranks, payload_bytes, item_bytes, root))


def rounds(op: str, ranks: int) -> int:
    """Messages that wait for each other in one call of Gloo, segments of one chunk counted once.

    >>> rounds("all_reduce", 4), rounds("broadcast", 5), rounds("gather", 8)
    (6, 3, 1)
    """
    match op:
        case "all_reduce" | "reduce_scatter":
            return 2 * (ranks - 1)
        case "all_gather" | "all_to_all":
            return ranks - 1
        case "reduce":
            return ranks
        case "broadcast" | "barrier":
            return (ranks - 1).bit_length()
        case _:
            return 1


@dataclass(frozen=True, slots=True)
class _Call:
    at: int
    ranks: int
    payload: int
    item: int
    root: int

    @property
    def place(self) -> int:
        """Position counted from the root."""
        return (self.at - self.root) % self.ranks

    @property
    def is_root(self) -> bool:
        return self.at == self.root


@dataclass(frozen=True, slots=True)
class _Segments:
    """A buffer in segments, ``each`` per rank; the last ones may be short or empty, and empty ones are not sent."""

    call: _Call
    length: int
    each: int

    @classmethod
    def alike(cls, call: _Call) -> "_Segments":
        """As an all-reduce cuts: the fewest segments that are small enough, then all of one length."""
        number = _up(max(-(-call.payload // _largest(call.item)), 2 * call.ranks), call.ranks)
        return cls(call, _up(-(-call.payload // number), call.item), number // call.ranks)

    @classmethod
    def full(cls, call: _Call) -> "_Segments":
        """As a reduce cuts: segments of the largest length, whatever is left for the last."""
        half_chunk = -(-call.payload // (2 * call.ranks))
        length = _up(min(half_chunk, _largest(call.item)), call.item)
        number = _up(max(-(-call.payload // length), 2 * call.ranks), call.ranks)
        return cls(call, length, number // call.ranks)

    def between(self, first: int, last: int) -> tuple[int, int]:
        """Bytes and messages of the segments from ``first`` up to, not including, ``last``."""
        whole, filled = self.call.payload, -(-self.call.payload // self.length)
        size = min(whole, last * self.length) - min(whole, first * self.length)
        return size, min(filled, last) - min(filled, first)

    def chunk(self, rank: int, *, last: int | None = None) -> tuple[int, int]:
        """Bytes and messages of a rank's segments, or only of its last ones."""
        end = (rank % self.call.ranks + 1) * self.each
        return self.between(end - (self.each if last is None else last), end)

    def all_but(self, part: tuple[int, int]) -> tuple[int, int]:
        size, messages = self.between(0, self.each * self.call.ranks)
        return size - part[0], messages - part[1]


def _largest(item: int) -> int:
    return LARGEST_SEGMENT // item * item


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _moved(sent: tuple[int, int], received: tuple[int, int]) -> Traffic:
    return Traffic(sent[0], received[0], sent[1], received[1])


def _all_reduce(call: _Call) -> Traffic:
    """A ring against the order of ranks: one turn to reduce (all chunks but the own), one to gather."""
    parts = _Segments.alike(call)
    before, own, after = (parts.all_but(parts.chunk(call.at + i)) for i in (-1, 0, 1))
    return _moved(own, after) + _moved(before, own)


def _reduce(call: _Call) -> Traffic:
    """A turn that leaves out only two segments (not a chunk), then each chunk goes to the root."""
    parts = _Segments.full(call)
    own, after = (parts.all_but(parts.chunk(call.at + i, last=2)) for i in (0, 1))
    turn = _moved(own, after)
    chunks = [parts.chunk(i)[0] for i in range(call.ranks)]
    if not call.is_root:
        return turn + Traffic(chunks[call.at], 0, int(chunks[call.at] > 0))
    del chunks[call.root]
    return turn + Traffic(0, sum(chunks), 0, sum(size > 0 for size in chunks))


def _all_gather(call: _Call) -> Traffic:
    """A ring, each chunk in two halves."""
    size, messages = call.payload // call.ranks * (call.ranks - 1), 2 * (call.ranks - 1)
    return Traffic(size, size, messages, messages)


def _all_to_all(call: _Call) -> Traffic:
    size, messages = call.payload // call.ranks * (call.ranks - 1), call.ranks - 1
    return Traffic(size, size, messages, messages)


def _broadcast(call: _Call) -> Traffic:
    """A binomial tree: in round i the first 2**i places send to the place 2**i further on."""
    rounds = range(call.place.bit_length(), call.ranks.bit_length())
    children = sum(call.place + 2**i < call.ranks for i in rounds)
    parents = int(not call.is_root)
    return Traffic(call.payload * children, call.payload * parents, children, parents)


def _scatter(call: _Call) -> Traffic:
    others, part = call.ranks - 1, call.payload // call.ranks
    return Traffic(part * others, 0, others) if call.is_root else Traffic(0, part, 0, 1)


def _gather(call: _Call) -> Traffic:
    there = _scatter(call)
    return Traffic(there.received_payload, there.sent_payload, there.received_messages, there.sent_messages)


def _send_recv(call: _Call) -> Traffic:
    sends, receives = int(call.place == 0), int(call.place == 1)
    return Traffic(call.payload * sends, call.payload * receives, sends, receives)


def _shift(call: _Call) -> Traffic:
    return Traffic(call.payload, call.payload, 1, 1)


def _rotate(call: _Call) -> Traffic:
    """An all-to-all that brings everything to one rank: to all others goes an empty message."""
    return Traffic(call.payload, call.payload, call.ranks - 1, call.ranks - 1)


def _barrier(call: _Call) -> Traffic:
    """Dissemination: one empty message in each of log2 n rounds."""
    rounds = (call.ranks - 1).bit_length()
    return Traffic(0, 0, rounds, rounds)


_RULES = MappingProxyType(
    {
        "all_reduce": _all_reduce,
        "all_gather": _all_gather,
        "reduce_scatter": _all_reduce,
        "all_to_all": _all_to_all,
        "broadcast": _broadcast,
        "reduce": _reduce,
        "send_recv": _send_recv,
        "gather": _gather,
        "scatter": _scatter,
        "barrier": _barrier,
        "shift": _shift,
        "rotate": _rotate,
    }
)
