"""Pairwise: in round k every rank exchanges with the rank k further on."""

from typing import ClassVar

from sympy import Expr

from meshcost.collectives.algorithm import (
    Algorithm,
    Form,
    Pattern,
    all_but_smallest,
    chunk,
    largest_to_others,
)
from meshcost.symbols import S, n

_EXCHANGE = Form(sent=S * (n - 1) / n, received=S * (n - 1) / n, total=S * (n - 1), rounds=n - 1)


class Pairwise(Algorithm):
    """Pairwise exchange; every rank sends each other rank the chunk that is meant for it, n - 1 rounds."""

    name = "pairwise"
    source = "MPICH source comments, as in Thakur, Rabenseifner and Gropp 2005, section 4.4"
    forms: ClassVar = {"all_to_all": _EXCHANGE, "reduce_scatter": _EXCHANGE}

    def position(self, op: str, at: int, ranks: int, elements: int) -> tuple[int, int]:
        """Rank i keeps chunk i of its own buffer; each other rank sends it its chunk i."""
        own = chunk(at, ranks, elements)
        return elements - own, own * (ranks - 1)

    def uneven(self, op: str, item: int) -> tuple[Expr, Expr]:
        """The smallest chunk stays at home on one rank, the largest arrives from everybody on another."""
        return all_but_smallest(item), largest_to_others(item)

    def pattern(self, op: str, ranks: int) -> Pattern:
        """To all others alike."""
        return "all"


PAIRWISE = Pairwise()
