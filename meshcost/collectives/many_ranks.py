"""Many ranks: what a form comes to as a group grows without end."""

from functools import cache, reduce

from sympy import Expr, Symbol, floor, limit, log, oo
from sympy.functions.elementary.miscellaneous import Max, Min

from meshcost.formula import log2_ceiling, ones_below, power2_floor
from meshcost.symbols import n


@cache
def many_ranks(amount: Expr) -> Expr | None:
    """The limit of a form of n alone for ever more ranks; None where it depends on how far n is from a power of two.

    >>> from meshcost.collectives import ALGORITHMS
    >>> from meshcost.symbols import S
    >>> forms = [ALGORITHMS[name].forms["all_reduce"].sent.subs(S, 1) for name in ("ring", "tree", "rabenseifner")]
    >>> [many_ranks(form) for form in forms]
    [2, oo, None]
    """
    smooth = _smooth(amount).replace(Min, _least).replace(Max, lambda *parts: -_least(*(-x for x in parts)))
    most = limit(smooth, n, oo)
    return None if most.free_symbols else most


def _smooth(amount: Expr) -> Expr:
    """The form with a smooth function in the place of each that jumps, and a symbol for what it is off.

    Of the binary digits below n half are ones, but for a multiple of n (Delange 1975).
    """
    return (
        amount.replace(
            log2_ceiling, lambda x: log(x.args[0] if isinstance(x, power2_floor) else x, 2) + _off("log2", x)
        )
        .replace(ones_below, lambda x: x * (log(x, 2) / 2 + _off("ones", x)))
        .replace(floor, lambda x: x - _off("floor", x))
        .replace(power2_floor, lambda x: x * _off("power2", x))
    )


def _off(function: str, x: Expr) -> Symbol:
    """What a function that jumps is off a smooth one, or its share of it: bounded, and another for every n."""
    return Symbol(f"{function} {x}", positive=True)


def _least(*parts: Expr) -> Expr:
    """The part that is the least for ever more ranks; a symbol where that depends on n."""

    def lesser(a: Expr, b: Expr) -> Expr:
        gap = limit(a - b, n, oo)
        if gap.free_symbols:
            return a * _off("least", a)
        return a if gap <= 0 else b

    return reduce(lesser, parts)
