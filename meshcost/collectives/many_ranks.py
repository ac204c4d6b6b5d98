"""Many ranks: what a form comes to as a group grows without end."""

from functools import cache, reduce

from sympy import Expr, Symbol, floor, limit, log, oo, symbols
from sympy.functions.elementary.miscellaneous import Max, Min

from meshcost.formula import log2_ceiling, ones_below, power2_floor
from meshcost.symbols import n

#: 0 for a power of two, else 1.
ODD = Min(1, n - power2_floor(n))
#: What a function that jumps from rank to rank is off a smooth one: bounded, and different for every n.
JUMPS: tuple[Symbol, ...] = symbols("up odd below")
UP, ODD_JUMP, BELOW = JUMPS


@cache
def many_ranks(amount: Expr) -> Expr | None:
    """The limit of a form of n alone for ever more ranks; None where it depends on how far n is from a power of two.

    >>> from meshcost.collectives import ALGORITHMS
    >>> from meshcost.symbols import S
    >>> forms = [ALGORITHMS[name].forms["all_reduce"].sent.subs(S, 1) for name in ("ring", "tree", "rabenseifner")]
    >>> [many_ranks(form) for form in forms]
    [2, oo, None]
    """
    most = _limit(_smooth(amount))
    return None if most is None or most.has(*JUMPS) else most


def _smooth(amount: Expr) -> Expr:
    """The form with a smooth function and what it is off in the place of each function that jumps.

    Of the binary digits below n half are ones, but for a multiple of n (Delange 1975).
    """
    return (
        amount.replace(log2_ceiling, lambda x: log(x.args[0] if isinstance(x, power2_floor) else x, 2) + UP)
        .subs(ODD, ODD_JUMP)
        .replace(ones_below, lambda x: x * (log(x, 2) / 2 + BELOW))
    )


def _limit(amount: Expr) -> Expr | None:
    if not amount.subs(power2_floor(n), UP).has(n):
        amount = amount.subs(power2_floor(n), n)  # it grows without end as n does
    if amount.has(power2_floor, floor):
        return None
    return limit(
        amount.replace(Min, _least).replace(Max, lambda *parts: -_least(*(-x for x in parts))), n, oo
    )


def _least(*parts: Expr) -> Expr:
    """The part that is the least for ever more ranks."""
    return reduce(lambda a, b: a if limit(a - b, n, oo) <= 0 else b, parts)
