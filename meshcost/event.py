"""Events: one kind of call each, with what it costs.

An **Event** says what is called, on which group, how often and on how much, in symbols. A **Price**, which an algorithm
of the collectives shelf puts on it, says what that costs on the wire. **Totals** add events up.
"""

from bisect import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from sympy import Expr

from meshcost.errors import LedgerError
from meshcost.formula import Values, bind

Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")
OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "send",
    "recv",
)


@dataclass(frozen=True, slots=True)
class Site:
    """Where in a step an event happens.

    ``unit`` is ``embedding``, a kind of block, ``head``, ``boundary`` (between two stages), ``micro_batch`` (after its
    last backward; with a number, of those through that stage) or ``step`` (once, after the last micro-batch). ``clip``
    or ``update`` before the name of a unit is a walk through the weights of the rank, before and after what the step
    calls once in the optimizer. ``order`` sorts the events of one unit within one phase. ``repeat`` calls follow each
    other; events of one order take turns.
    ``micro_batches`` says whether it happens for each of them, or only in the first or last pass of its unit;
    ``from_layer`` leaves out the blocks of the model before that one.
    """

    unit: str
    order: tuple[int, ...] = ()
    repeat: int = 1
    micro_batches: Literal["every", "first", "last"] = "every"
    from_layer: int = 0


#: What all ranks together send, by the names that events, ledgers and their JSON have for it.
CLUSTER = ("cluster_sent_bytes", "cluster_inter_node_bytes")

#: First position, bytes sent and bytes received of positions that are alike, up to the next run.
Run = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Forms:
    """Closed forms of the bytes sent and received; ``write`` is called when one of them is first read.

    A table shows neither, and SymPy takes longer to write them than a bill takes for everything else.
    """

    write: Callable[[], tuple[Expr, Expr]]

    @cached_property
    def both(self) -> tuple[Expr, Expr]:
        """Sent and received."""
        return self.write()

    def __eq__(self, other: object) -> bool:
        return self.both == other.both if isinstance(other, Forms) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.both)

    def __repr__(self) -> str:
        return f"Forms(sent={self.both[0]}, received={self.both[1]})"


@dataclass(frozen=True, slots=True)
class Price:
    """What an event costs under one algorithm: bytes on the wire for one call, by the busiest rank.

    ``forms`` are the closed forms for all calls of the event. ``intra_node_bytes`` and
    ``inter_node_bytes`` split the sent bytes: of the ranks that send so much, those of the one that sends the most of it
    between nodes. ``cluster_sent_bytes`` and ``cluster_inter_node_bytes`` are what all ranks that make the call send
    together. ``rail_bytes`` are what one rank sends between nodes where the members of its group on one node share out
    what leaves it. Of the ``rounds``, ``inter_node_rounds`` wait for a message between nodes. ``runs`` holds (first
    position, sent, received) where positions in the group differ; it is empty where all ranks of a group send alike.
    """

    algorithm: str
    forms: Forms = field(hash=False)
    sent_bytes: int
    received_bytes: int
    intra_node_bytes: int
    inter_node_bytes: int
    cluster_sent_bytes: int = 0
    cluster_inter_node_bytes: int = 0
    rail_bytes: int = 0
    rounds: int = 0
    inter_node_rounds: int = 0
    runs: tuple[Run, ...] = ()

    @property
    def sent(self) -> Expr:
        """Bytes sent in all calls of the event, as a formula."""
        return self.forms.both[0]

    @property
    def received(self) -> Expr:
        """Bytes received in all calls of the event, as a formula."""
        return self.forms.both[1]

    def at(self, position: int) -> tuple[int, int]:
        """Bytes (sent, received) of one call by one position of the group."""
        if not self.runs:
            return self.sent_bytes, self.received_bytes
        return self.runs[bisect(self.runs, (position + 1,)) - 1][1:]


@dataclass(frozen=True)
class Event:
    """One kind of call.

    ``payload`` is the whole logical buffer of one call in bytes, ``count`` the calls of one rank in one step; ``values``
    gives every symbol its number. ``axes`` name the group, ``stages`` the pipeline stages whose ranks make the call.
    ``pairs`` restricts a group along the pipeline axis to some stages, ``split`` to that many neighbours in it;
    ``shift`` is the distance to the peer of a ``send`` within its group, or of an ``all_to_all`` that has but one.
    """

    strategy: str
    op: str
    axes: tuple[str, ...]
    group_size: int
    phase: Phase
    why: str
    dtype: str
    payload: Expr
    count: Expr
    values: Values = field(repr=False, compare=False)
    stages: tuple[int, ...] = (0,)
    site: Site = Site("step")
    item_bytes: int = 1
    pairs: tuple[tuple[int, ...], ...] = ()
    shift: int = 0
    split: int = 0
    price: Price | None = None

    @cached_property
    def payload_bytes(self) -> int:
        """Bytes of one call."""
        return bind(self.payload, self.values)

    @cached_property
    def calls(self) -> int:
        """Calls of one rank in one step."""
        return bind(self.count, self.values)

    @property
    def wire_op(self) -> str:
        """The operation that the wire sees: an all-to-all in which each rank sends all to one other is a send."""
        return "send" if self.op == "all_to_all" and self.shift else self.op

    def chunk(self, position: int) -> int:
        """Bytes of the part of the payload that belongs to one position of the group: balanced, whole elements."""
        elements, size = self.payload_bytes // self.item_bytes, self.group_size
        return (elements // size + (position < elements % size)) * self.item_bytes

    @property
    def priced(self) -> Price:
        """The price; raises LedgerError if no algorithm has put one on this event."""
        if self.price is None:
            raise LedgerError(
                f"{self.strategy} {self.op} has no price: use meshcost.analyze, which adds one."
            )
        return self.price

    @property
    def cluster_sent_bytes(self) -> int:
        """Bytes that all ranks together send in all calls of this event."""
        return self.calls * self.priced.cluster_sent_bytes

    @property
    def cluster_inter_node_bytes(self) -> int:
        """Those of them that go from one node to another."""
        return self.calls * self.priced.cluster_inter_node_bytes

    @property
    def cluster(self) -> dict[str, int]:
        """Both sums over all ranks, as JSON has them."""
        return {name: getattr(self, name) for name in CLUSTER}

    @cached_property
    def all_pay_alike(self) -> bool:
        """Whether it costs every rank that calls it the same: none sends more, and none more of it between nodes.

        No rank sends a larger share between nodes than the one in the price; where all together send that share, each does.
        """
        price = self.price
        return price is None or (
            not price.runs
            and price.inter_node_bytes * price.cluster_sent_bytes
            == price.cluster_inter_node_bytes * price.sent_bytes
        )

    @cached_property
    def totals(self) -> "Totals":
        """All calls of this event by its busiest rank."""
        price, calls = self.price, self.calls
        if price is None:
            return Totals(calls, calls * self.payload_bytes)
        return Totals(
            calls,
            calls * self.payload_bytes,
            calls * price.sent_bytes,
            calls * price.received_bytes,
            calls * price.intra_node_bytes,
            calls * price.inter_node_bytes,
        )


#: Where bytes go: how groups by link are named.
INSIDE, BETWEEN = "inside a node", "between nodes"


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over events: calls, and bytes of payload, sent, received, sent inside a node and sent between nodes.

    >>> Totals(1, 10) + Totals(2, 5)
    Totals(calls=3, payload_bytes=15, sent_bytes=0, received_bytes=0, intra_node_bytes=0, inter_node_bytes=0)
    """

    calls: int = 0
    payload_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    intra_node_bytes: int = 0
    inter_node_bytes: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        """Add field by field."""
        return Totals(*(getattr(self, name) + getattr(other, name) for name in Totals.__slots__))

    def as_dict(self) -> dict[str, int]:
        """Name every sum, as JSON has it."""
        return {name: getattr(self, name) for name in Totals.__slots__}


def by_link(paid: Iterable[Totals]) -> dict[str, Totals]:
    """Add up by link: ``sent_bytes`` is what takes that kind of link. One call may use both, so none are counted.

    >>> by_link([Totals(calls=2, sent_bytes=9, intra_node_bytes=9)])["inside a node"].sent_bytes
    9
    """
    sums = dict.fromkeys((INSIDE, BETWEEN), Totals())
    for one in paid:
        for link, sent in ((INSIDE, one.intra_node_bytes), (BETWEEN, one.inter_node_bytes)):
            sums[link] += Totals(sent_bytes=sent)
    return sums
