"""Direct: everything is sent at once to whoever needs it; one round, as on a fully connected switch."""

from collections.abc import Iterator
from types import MappingProxyType

from sympy import Expr, Integer

from meshcost.collectives.algorithm import (
    NOTHING,
    Algorithm,
    Form,
    Move,
    Pattern,
    all_but_smallest,
    largest_to_others,
)
from meshcost.collectives.cells import Cells
from meshcost.collectives.pairwise import PAIRWISE
from meshcost.symbols import S, n

_ONE = Integer(1)
_CHUNK, _OTHERS = S / n, S * (n - 1) / n
_ROOTED = ("broadcast", "scatter", "reduce", "gather")


class Direct(Algorithm):
    """Direct exchange, also called linear: one round, in which a rank sends and receives as many messages as it must.

    An all-reduce sends the whole buffer to everybody (one-shot): S (n - 1), good for tiny buffers only. ``send`` and
    ``recv`` are the two ends of one message.

    >>> print(*DIRECT.steps("gather", 3, 3).rounds[0], sep="; ")
    1 -> 0, cells 1; 2 -> 0, cells 2
    """

    name = "direct"
    how = "One round: whoever has what another rank needs sends it there, all at the same time."
    source = "one message per pair; the least number of rounds any algorithm can have"
    ports = None
    least_bytes = frozenset(
        {"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "send", "recv", "barrier"}
    )
    forms = MappingProxyType(
        {
            "all_reduce": Form(S * (n - 1), S * (n - 1), S * n * (n - 1), _ONE, added=S * (n - 1)),
            "all_gather": Form(_OTHERS, _OTHERS, S * (n - 1), _ONE),
            "reduce_scatter": Form(_OTHERS, _OTHERS, S * (n - 1), _ONE, added=_OTHERS),
            "all_to_all": Form(_OTHERS, _OTHERS, S * (n - 1), _ONE),
            "broadcast": Form(S * (n - 1), S, S * (n - 1), _ONE),
            "reduce": Form(S, S * (n - 1), S * (n - 1), _ONE, added=S * (n - 1)),
            "gather": Form(_CHUNK, _OTHERS, _OTHERS, _ONE),
            "scatter": Form(_OTHERS, _CHUNK, _OTHERS, _ONE),
            "barrier": Form(NOTHING, NOTHING, NOTHING, _ONE),
            "send": Form(S, NOTHING, S, _ONE),
            "recv": Form(NOTHING, S, S, _ONE),
        }
    )
    least_rounds = frozenset(forms)
    alike = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv", "barrier"})

    def moved(self, op: str, at: int, ranks: int, cells: Cells) -> tuple[int, int]:
        """Count messages pair by pair; position 0 is the root. Of a message, each position is the end that is asked for."""
        own, whole, others = cells[at], cells.total, ranks - 1
        match op:
            case "send" | "recv":
                return whole * (op == "send"), whole * (op == "recv")
            case "all_reduce":
                return whole * others, whole * others
            case "broadcast":
                return (whole * others, 0) if at == 0 else (0, whole)
            case "reduce":
                return (0, whole * others) if at == 0 else (whole, 0)
            case "gather":
                return (0, whole - own) if at == 0 else (own, 0)
            case "scatter":
                return (whole - own, 0) if at == 0 else (0, own)
            case "all_gather" | "barrier":
                return own * others, whole - own
            case _:
                return PAIRWISE.moved(op, at, ranks, cells)

    def moves(self, op: str, ranks: int) -> Iterator[list[Move]]:
        """Yield one round; that of an exchange is all rounds of a pairwise exchange at once."""
        match op:
            case "all_to_all" | "reduce_scatter":
                yield [move for messages in PAIRWISE.moves(op, ranks) for move in messages]
            case "send" | "recv":
                yield [Move(0, 1, (0,))]
            case "broadcast" | "scatter":
                yield [Move(0, i, (i * (op == "scatter"),)) for i in range(1, ranks)]
            case "reduce" | "gather":
                yield [Move(i, 0, (i * (op == "gather"),), add=op == "reduce") for i in range(1, ranks)]
            case _:
                whole = op == "all_reduce"
                pairs = [(i, j) for i in range(ranks) for j in range(ranks) if i != j]
                yield [Move(i, j, (0 if whole else i,), add=whole) for i, j in pairs]

    def uneven(self, op: str, *, ranks: int, elements: int, item: int) -> tuple[Expr, Expr]:
        """As in a pairwise exchange; an all-gather sends what a reduce-scatter receives."""
        if op in ("gather", "scatter"):
            return super().uneven(op, ranks=ranks, elements=elements, item=item)
        ends = all_but_smallest(item), largest_to_others(item)
        return ends[::-1] if op == "all_gather" else ends

    def pattern(self, op: str, ranks: int, cells: Cells | None = None) -> Pattern:
        """To all others alike, from or to the root, or to one peer."""
        if op in ("send", "recv"):
            return "next"
        return super().pattern(op, ranks, cells) if op in _ROOTED else "all"


DIRECT = Direct()
