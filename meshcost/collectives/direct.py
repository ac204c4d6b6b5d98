"""Direct: everything is sent at once to whoever needs it; one round, as on a fully connected switch."""

from typing import ClassVar

from sympy import Expr, Integer

from meshcost.collectives.algorithm import (
    Algorithm,
    Form,
    Pattern,
    all_but_smallest,
    chunk,
    largest_to_others,
)
from meshcost.symbols import S, n

_ONE = Integer(1)
_EXCHANGE = Form(sent=S * (n - 1) / n, received=S * (n - 1) / n, total=S * (n - 1), rounds=_ONE)


class Direct(Algorithm):
    """Direct exchange in one round.

    An all-reduce sends the whole buffer to everybody (one-shot): S (n - 1), good for tiny buffers only. ``send`` and
    ``recv`` are the two ends of one message.
    """

    name = "direct"
    source = "one message per pair; the least number of rounds any algorithm can have"
    forms: ClassVar = {
        "all_reduce": Form(S * (n - 1), S * (n - 1), S * n * (n - 1), _ONE),
        "all_gather": _EXCHANGE,
        "reduce_scatter": _EXCHANGE,
        "all_to_all": _EXCHANGE,
        "broadcast": Form(S * (n - 1), S, S * (n - 1), _ONE),
        "reduce": Form(S, S * (n - 1), S * (n - 1), _ONE),
        "send": Form(S, Integer(0), S, _ONE),
        "recv": Form(Integer(0), S, S, _ONE),
    }

    def position(self, op: str, at: int, ranks: int, elements: int) -> tuple[int, int]:
        """Count messages pair by pair; position 0 is the root of a broadcast or reduce."""
        own, others = chunk(at, ranks, elements), ranks - 1
        match op:
            case "send" | "recv":
                return elements * (op == "send"), elements * (op == "recv")
            case "all_reduce":
                return elements * others, elements * others
            case "broadcast":
                return (elements * others, 0) if at == 0 else (0, elements)
            case "reduce":
                return (0, elements * others) if at == 0 else (elements, 0)
            case "all_gather":
                return own * others, elements - own
            case _:
                return elements - own, own * others

    def uneven(self, op: str, item: int) -> tuple[Expr, Expr]:
        """As in a pairwise exchange; an all-gather sends what a reduce-scatter receives."""
        ends = all_but_smallest(item), largest_to_others(item)
        return ends[::-1] if op == "all_gather" else ends

    def pattern(self, op: str, ranks: int) -> Pattern:
        """To all others alike, from or to the root, or to one peer."""
        match op:
            case "broadcast":
                return tuple((0, i) for i in range(1, ranks))
            case "reduce":
                return tuple((i, 0) for i in range(1, ranks))
            case "send" | "recv":
                return "next"
            case _:
                return "all"


DIRECT = Direct()
