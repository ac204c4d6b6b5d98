"""Many ranks: what a form comes to as a group grows without end."""

from functools import cache, reduce
from itertools import product

from sympy import Expr, floor, limit, log, oo
from sympy.functions.elementary.miscellaneous import Max, Min

from meshcost.formula import log2_ceiling, ones_below, power2_floor
from meshcost.symbols import n

#: 0 for a power of two, else 1.
ODD = Min(1, n - power2_floor(n))


@cache
def many_ranks(amount: Expr) -> Expr | None:
    """The limit of a form of n alone for ever more ranks; None where it depends on how far n is from a power of two.

    >>> from meshcost.collectives import ALGORITHMS
    >>> from meshcost.symbols import S
    >>> forms = [ALGORITHMS[name].forms["all_reduce"].sent.subs(S, 1) for name in ("ring", "tree", "rabenseifner")]
    >>> [many_ranks(form) for form in forms]
    [2, oo, None]
    """
    if not amount.has(n):
        return amount
    bounds = {_bounded(amount, *most) for most in product((0, 1), repeat=3)}
    found = {_limit(bound) for bound in bounds}
    return found.pop() if len(found) == 1 else None


def _bounded(amount: Expr, rounds: int, odd: int, ones: int) -> Expr:
    """The form with each function that jumps at its least (0) or its most (1).

    Forms grow with each of them, so that a limit that all of these have is that of the form. Of the binary digits below
    n half are ones, or fewer by n at most (Delange 1975).
    """
    return (
        amount.replace(log2_ceiling, lambda x: _log2(x) + rounds)
        .subs(ODD, odd)
        .replace(ones_below, lambda x: x * (log(x, 2) / 2 + ones - 1))
    )


def _log2(x: Expr) -> Expr:
    return log(x.args[0], 2) - 1 if isinstance(x, power2_floor) else log(x, 2)


def _limit(amount: Expr) -> Expr | None:
    if not amount.subs(power2_floor(n), 1).has(n):
        amount = amount.subs(power2_floor(n), n)  # it grows without end as n does
    if amount.has(power2_floor, floor):
        return None
    return limit(
        amount.replace(Min, _least).replace(Max, lambda *parts: -_least(*(-x for x in parts))), n, oo
    )


def _least(*parts: Expr) -> Expr:
    """The part that is the least for ever more ranks."""
    return reduce(lambda a, b: a if limit(a - b, n, oo) <= 0 else b, parts)
