"""Costs of collectives as MPICH states them, and as Thakur, Rabenseifner and Gropp printed them in 2005.

Source: the comments above each algorithm in MPICH, src/mpi/coll (pmodels/mpich at 6a79bf6); Thakur, Rabenseifner and
Gropp, Optimization of collective communication operations in MPICH, 2005. p ranks, n bytes, lg p exact for a power of two.
A row is (alpha, beta, gamma): messages in sequence, bytes that follow each other, bytes added, the two in units of n.
"""

from collections.abc import Callable
from fractions import Fraction
from math import log2

import pytest

from meshcost.collectives import ALGORITHMS
from meshcost.collectives.schedule import Steps
from meshcost.formula import value
from meshcost.symbols import S, n

Cost = tuple[Fraction, Fraction, Fraction]
POWERS = (2, 4, 8, 16, 32)
OTHERS = (3, 5, 6, 7, 9, 12, 13, 24, 31)


def lg(p: int) -> int:
    return round(log2(p))


def f(p: int) -> Fraction:
    return Fraction(p - 1, p)


TABLE: dict[tuple[str, str], Callable[[int], Cost]] = {
    ("all_gather", "recursive_doubling"): lambda p: (lg(p), f(p), 0),
    ("all_gather", "bruck"): lambda p: (lg(p), f(p), 0),
    ("all_gather", "ring"): lambda p: (p - 1, f(p), 0),
    ("all_reduce", "recursive_doubling"): lambda p: (lg(p), lg(p), lg(p)),
    ("all_reduce", "rabenseifner"): lambda p: (2 * lg(p), 2 * f(p), f(p)),
    ("all_reduce", "ring"): lambda p: (2 * (p - 1), 2 * f(p), f(p)),
    ("reduce_scatter", "recursive_halving"): lambda p: (lg(p), f(p), f(p)),
    ("reduce_scatter", "pairwise"): lambda p: (p - 1, f(p), f(p)),
    ("all_to_all", "bruck"): lambda p: (lg(p), Fraction(lg(p), 2), 0),
    ("all_to_all", "pairwise"): lambda p: (p - 1, f(p), 0),
    ("broadcast", "tree"): lambda p: (lg(p), lg(p), 0),
    ("broadcast", "scatter_ring"): lambda p: (lg(p) + p - 1, 2 * f(p), 0),
    ("broadcast", "scatter_doubling"): lambda p: (2 * lg(p), 2 * f(p), 0),
    ("gather", "tree"): lambda p: (lg(p), f(p), 0),
    ("scatter", "tree"): lambda p: (lg(p), f(p), 0),
    ("reduce", "rabenseifner"): lambda p: (2 * lg(p), 2 * f(p), f(p)),
    ("reduce", "tree"): lambda p: (lg(p), lg(p), lg(p)),
}
#: Rows that hold for any p as they stand.
ANY = [
    ("all_gather", "ring"),
    ("all_reduce", "ring"),
    ("reduce_scatter", "pairwise"),
    ("all_to_all", "pairwise"),
]


def in_sequence(steps: Steps) -> Cost:
    """Rounds, and the largest message of each round, sent and added."""
    sizes = [[(steps.size(x), x.add) for x in messages] for messages in steps.rounds]
    whole = sum(steps.cell_elements) // (steps.ranks if steps.op == "all_to_all" else 1)
    sent = sum(max(size for size, _ in messages) for messages in sizes)
    added = sum(max(size * add for size, add in messages) for messages in sizes)
    return Fraction(len(sizes)), Fraction(sent, whole), Fraction(added, whole)


@pytest.mark.parametrize(("op", "name"), TABLE)
def test_the_cost_is_the_published_one(op: str, name: str):
    for p in (*POWERS, *(OTHERS if (op, name) in ANY else ())):
        assert in_sequence(ALGORITHMS[name].steps(op, p, p)) == TABLE[op, name](p)
        assert value(ALGORITHMS[name].forms[op].rounds, {n: p}) == TABLE[op, name](p)[0]


@pytest.mark.parametrize("p", OTHERS)
def test_rabenseifner_for_other_numbers_of_ranks(p: int):
    """(2 floor(lg p) + 2) alpha + (2 (p - 1) / p + 2) n beta + (1 + (p - 1) / p) n gamma.

    The comment writes p where floor(lg p) rounds run over q = 2**floor(lg p) ranks; with q it is exact.
    """
    q = 2 ** int(log2(p))
    found = in_sequence(ALGORITHMS["rabenseifner"].steps("all_reduce", p, q))
    assert found == (2 * lg(q) + 2, 2 * f(q) + 2, f(q) + 1)
    assert found[1] <= 2 * f(p) + 2


@pytest.mark.parametrize("p", OTHERS)
def test_bruck_and_trees_round_up(p: int):
    rounds = int(log2(p)) + 1
    for op, name in (
        ("all_gather", "bruck"),
        ("all_to_all", "bruck"),
        ("broadcast", "tree"),
        ("gather", "tree"),
    ):
        assert value(ALGORITHMS[name].forms[op].rounds, {n: p}) == rounds


def test_a_double_binary_tree_sends_about_2_s_in_about_2_lg_p_rounds():
    """NCCL, src/graph/tuning.cc: a tree all-reduce costs 2 lg(nodes) latencies; Sanders, Speck and Traff 2009: 2 n beta."""
    for p in POWERS[1:]:
        form = ALGORITHMS["double_tree"].forms["all_reduce"]
        assert (value(form.rounds, {n: p}), value(form.sent, {S: 1, n: p})) == (2 * lg(p), 2)


def test_nvls_gives_the_bus_bandwidth_that_was_measured_beyond_the_link():
    """8 ranks at 450 GB/s: S / time = 450 * 8 / 9 = 400 GB/s, so busbw of nccl-tests is 700 GB/s at most."""
    sent = value(ALGORITHMS["nvls"].forms["all_reduce"].sent, {S: 1, n: 8})
    assert 450 / sent == 400
    assert 450 / sent * Fraction(2 * 7, 8) == 700
