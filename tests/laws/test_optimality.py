"""Optimality: what algorithms declare is measured, and what can be proved about their forms is proved."""

from functools import cache

import pytest
from sympy import Expr, Integer, Max, Min, Rational, Symbol, floor, log, oo, simplify

from meshcost.collectives import ALGORITHMS, Form
from meshcost.collectives.chain import Chain
from meshcost.collectives.double_tree import upper
from meshcost.collectives.hierarchical import Hierarchical, OnNodes
from meshcost.collectives.many_ranks import many_ranks
from meshcost.collectives.operations import OPERATIONS, operation
from meshcost.collectives.optimality import LEAST_BYTES, least_rounds, node_size, optimality
from meshcost.collectives.pat import Pat
from meshcost.collectives.rail import Rail
from meshcost.collectives.rings import Rings
from meshcost.formula import log2_ceiling, ones_below, power2_floor, value
from meshcost.symbols import S, g, n

CASES = [(name, op) for name, algorithm in ALGORITHMS.items() for op in algorithm.forms]
MANY = (*range(2, 34), 47, 48, 63, 64, 65)

# Tables are made once, in one process of several.
pytestmark = pytest.mark.xdist_group("optimality")
table = cache(optimality)


@pytest.mark.parametrize(("name", "op"), CASES)
def test_an_algorithm_is_as_good_as_it_declares_and_no_better(name: str, op: str):
    rows = [row for ranks in MANY for row in table(ranks) if (row.algorithm, row.op) == (name, op)]
    assert len(rows) == len(MANY)
    assert {row.least_bytes for row in rows} == {all(row.bytes_ratio == 1 for row in rows)}
    assert {row.least_rounds for row in rows} == {all(row.rounds_ratio == 1 for row in rows)}


def test_only_a_switch_does_better_than_the_least():
    for ranks in MANY:
        for row in table(ranks):
            assert row.rounds_ratio >= 1
            assert row.bytes_ratio >= 1 or ALGORITHMS[row.algorithm].switch


def test_the_table_has_each_algorithm_once_for_each_of_its_operations():
    assert [(row.algorithm, row.op) for row in optimality(12)] == CASES
    assert optimality(12, "gather") == tuple(row for row in optimality(12) if row.op == "gather")


def test_the_least_rounds_follow_from_the_ports():
    """Counted the other way: rounds in which each of those who know tells as many others as it has ports."""
    for ranks in MANY:
        for name, ports in (("tree", 1), ("double_tree", 2), ("bidirectional_ring", 2), ("multi_ring", 4)):
            knowing, rounds = {0}, 0
            while len(knowing) < ranks:
                knowing = set(range(min(ranks, len(knowing) + ports * len(knowing))))
                rounds += 1
            assert least_rounds(ALGORITHMS[name], ranks) == rounds
        assert [least_rounds(ALGORITHMS[x], ranks) for x in ("direct", "sharp")] == [1, 2]


def test_nodes_are_the_largest_of_which_the_ranks_fill_two():
    sizes = {1: 1, 2: 1, 4: 2, 9: 3, 12: 6, 13: 1, 16: 8, 18: 6, 64: 8}
    assert {ranks: node_size(ranks) for ranks in sizes} == sizes


def test_no_operation_without_a_least():
    assert set(LEAST_BYTES) == {op for _, op in CASES}
    assert all(LEAST_BYTES[call] == op.lower_bound for op in OPERATIONS.values() for call in op.calls)


# Figures that can be worked out by hand: op, algorithm, ranks, times the least bytes, times the fewest rounds.
@pytest.mark.parametrize(
    ("op", "name", "ranks", "most", "rounds"),
    [
        ("all_reduce", "ring", 8, 1, Integer(14) / 3),
        ("all_reduce", "tree", 8, Integer(24) / 14, 2),
        ("all_reduce", "rabenseifner", 8, 1, 2),
        ("all_reduce", "double_tree", 8, Integer(16) / 14, 3),
        ("all_reduce", "bidirectional_ring", 27, 1, Integer(52) / 3),
        ("all_reduce", "multi_ring", 26, 1, Integer(50) / 3),
        ("all_reduce", "hierarchical", 16, 1, Integer(16) / 4),
        ("all_to_all", "rail", 16, Integer(22) / 15, Integer(8) / 4),
        ("all_reduce", "nvls", 8, Integer(9) / 14, 2),
        ("all_reduce", "sharp", 8, Integer(8) / 14, 1),
        ("all_to_all", "bruck", 8, Integer(12) / 7, 1),
        ("all_gather", "pat", 9, 1, Integer(5) / 4),
        ("scatter", "tree", 6, 1, 1),
    ],
)
def test_figures_worked_out_by_hand(op: str, name: str, ranks: int, most: int, rounds: int):
    [row] = [row for row in optimality(ranks, op) if row.algorithm == name]
    assert (row.bytes_ratio, row.rounds_ratio) == (most, rounds)


@pytest.mark.parametrize("name", ["ring", "bidirectional_ring", "multi_ring", "nvls"])
@pytest.mark.parametrize("side", ["sent", "received", "total", "rounds", "added"])
def test_an_all_reduce_costs_a_reduce_scatter_and_an_all_gather(name: str, side: str):
    forms = ALGORITHMS[name].forms
    whole, scatter, gather = (getattr(forms[x], side) for x in ("all_reduce", "reduce_scatter", "all_gather"))
    if name != "nvls" or side != "added":
        assert simplify(whole - scatter - gather) == 0


@pytest.mark.parametrize("side", ["sent", "received", "rounds"])
def test_a_power_of_two_halves_and_doubles_into_an_all_reduce(side: str):
    """Rabenseifner's all-reduce is recursive halving and recursive doubling."""
    for ranks in (2, 4, 8, 16, 32, 64):
        whole, scatter, gather = (
            value(getattr(ALGORITHMS[name].forms[op], side), {S: 64, n: ranks})
            for name, op in (
                ("rabenseifner", "all_reduce"),
                ("recursive_halving", "reduce_scatter"),
                ("recursive_doubling", "all_gather"),
            )
        )
        assert whole == scatter + gather


@pytest.mark.parametrize(
    ("name", "op", "most"),
    [
        ("ring", "all_reduce", 2),
        ("ring", "all_gather", 1),
        ("hierarchical", "all_reduce", 2),
        ("bruck", "all_gather", 1),
        ("bruck", "all_to_all", oo),
        ("pairwise", "all_to_all", 1),
        ("rail", "all_to_all", Integer(15) / 8),
        ("nvls", "all_reduce", 1),
        ("scatter_ring", "broadcast", 2),
        ("double_tree", "all_reduce", 2),
        ("tree", "scatter", 1),
        ("tree", "broadcast", oo),
        ("recursive_doubling", "all_reduce", oo),
        ("rabenseifner", "all_reduce", None),
        ("recursive_doubling", "all_gather", None),
    ],
)
def test_limits_for_many_ranks(name: str, op: str, most: object):
    assert many_ranks(ALGORITHMS[name].forms[op].sent.subs(S, 1)) == most


@pytest.mark.parametrize(
    ("amount", "most"),
    [
        (log2_ceiling(n) / log(n, 2), 1),
        (log2_ceiling(power2_floor(n)) / log(n, 2), 1),
        (ones_below(n) / (n * log(n, 2)), Rational(1, 2)),
        (log2_ceiling(n) - log(n, 2), None),
        (log2_ceiling(power2_floor(n)) - log(n, 2), None),
        (ones_below(n) / n - log(n, 2) / 2, None),
        (log2_ceiling(n) / n, 0),
        (n - power2_floor(n), None),
        (n - floor(n / 2), oo),
        (power2_floor(n) * log2_ceiling(n) - 2 * power2_floor(n), oo),
        (power2_floor(n) / n, None),
        (floor(n / 2) / n, Rational(1, 2)),
        (Min(n, power2_floor(n)) / n, None),
        (Min(2 - 1 / n, 1 + 1 / n), 1),
        (Max(2 - 1 / n, 1 + 1 / n), 2),
        (Integer(3), 3),
    ],
    ids=str,
)
def test_limits_of_functions_that_jump(amount: Expr, most: object):
    assert many_ranks(amount) == most


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("side", ["sent", "received", "total", "rounds", "added"])
def test_a_limit_is_neared_and_where_there_is_none_the_form_goes_up_and_down(name: str, side: str):
    at = [8 * (2**k + j * 2 ** (k - 2)) + i for k in (40, 41) for j in range(4) for i in (0, 8)]
    for form in ALGORITHMS[name].forms.values():
        amount = getattr(form, side).xreplace({S: Integer(1)})
        most, seen = many_ranks(amount), [value(amount, {n: ranks}) for ranks in at]
        if most == oo:
            assert min(seen) > 15
        elif most is not None:
            assert seen == pytest.approx([float(most)] * len(seen), rel=1e-6)
        else:
            assert max(seen) > 1.1 * min(seen)


def test_on_slow_links_a_hierarchy_sends_no_more_than_a_flat_ring():
    """With g ranks in each of k nodes, a flat ring sends (g - 1) / (k - 1) times as much more over its slow link."""
    inside, nodes = (Symbol(x, integer=True, positive=True) for x in ("x", "y"))
    ring = ALGORITHMS["ring"].forms["all_reduce"].sent
    general = Hierarchical().between_nodes(inside).subs(n, inside * nodes)
    difference = simplify(ring.subs(n, inside * nodes) - general)
    assert simplify(difference - 2 * S * (inside - 1) / inside) == 0
    more = difference.subs(inside, Symbol("z", integer=True, nonnegative=True) + 1)
    assert simplify(more).is_nonnegative
    # All ranks of a node together send 2 S (k - 1) / k: what one rank of a ring over k ranks does.
    assert simplify(general * inside - ring.subs(n, nodes)) == 0


@pytest.mark.parametrize("ranks", [2, 6, 8, 12, 24, 32])
@pytest.mark.parametrize(("kind", "op"), [(Hierarchical, "all_reduce"), (Rail, "all_to_all")])
def test_what_leaves_a_node_is_what_is_stated(kind: type[OnNodes], op: str, ranks: int):
    for inside in (x for x in range(1, ranks + 1) if ranks % x == 0):
        algorithm = kind(inside)
        stated = value(algorithm.between_nodes(g), {S: ranks, n: ranks, g: inside})
        leaving = [0] * ranks
        for message in (x for messages in algorithm.steps(op, ranks, ranks).rounds for x in messages):
            leaving[message.source] += len(message.cells) * (
                message.source // inside != message.target // inside
            )
        assert set(leaving) == {stated}


@pytest.mark.parametrize("op", [x for x in OPERATIONS if x != "all_to_all"])
def test_the_factors_of_nccl_tests_are_what_a_ring_sends(op: str):
    """busbw = S / time * factor is the speed of a link that carries what the busiest rank of the ring sends."""
    meaning = operation(op)
    form = ALGORITHMS["direct" if op == "send_recv" else "ring"].forms[meaning.calls[0]]
    assert simplify(meaning.busbw_factor - form.sent / S) == 0


def test_the_factor_of_an_all_to_all_is_what_a_pairwise_exchange_sends():
    assert (
        simplify(operation("all_to_all").busbw_factor - ALGORITHMS["pairwise"].forms["all_to_all"].sent / S)
        == 0
    )


# The trees that NCCL draws in src/graph/trees.cc, for 14 ranks, as parents: the first one.
NCCL_TREE = {1: 2, 2: 4, 3: 2, 4: 8, 5: 6, 6: 4, 7: 6, 8: 0, 9: 10, 10: 12, 11: 10, 12: 8, 13: 12}


def test_the_first_tree_is_the_one_that_nccl_draws():
    assert {i: upper(i, 14) for i in range(1, 14)} == NCCL_TREE
    assert upper(0, 14) is None


# The second one, as (ranks, children by parent): mirrored where their number is even, else shifted by one.
NCCL_SECOND = {
    12: {11: {3}, 3: {1, 7}, 1: {0, 2}, 7: {5, 9}, 5: {4, 6}, 9: {8, 10}},
    13: {1: {9}, 9: {5, 0}, 5: {3, 7}, 3: {2, 4}, 7: {6, 8}, 0: {11}, 11: {10, 12}},
}


@pytest.mark.parametrize("ranks", NCCL_SECOND)
def test_the_second_tree_is_mirrored_or_shifted_as_nccl_draws_it(ranks: int):
    steps = ALGORITHMS["double_tree"].steps("all_reduce", ranks, 2)
    down = {
        (x.source, x.target) for messages in steps.rounds for x in messages if not x.add and x.cells == (1,)
    }
    up = {(x.target, x.source) for messages in steps.rounds for x in messages if x.add and x.cells == (1,)}
    assert up == down == {(i, j) for i, children in NCCL_SECOND[ranks].items() for j in children}


def test_in_a_double_tree_no_rank_works_in_both_trees_unless_it_is_a_root():
    for ranks in range(4, 40, 2):
        steps = ALGORITHMS["double_tree"].steps("all_reduce", ranks, 2)
        down = [(x.source, x.cells[0]) for messages in steps.rounds for x in messages if not x.add]
        both = {source for source, half in down if half == 0} & {source for source, half in down if half == 1}
        assert both == set()


# The order in which NCCL walks the trees of PAT (nextAs of PatAGAlgorithm), by aggregation delta.
NCCL_WALK = {2: [1], 4: [2, 3, 1], 8: [4, 6, 7, 5, 2, 3, 1]}


@pytest.mark.parametrize("apart", NCCL_WALK)
def test_pat_walks_its_trees_as_nccl_does(apart: int):
    steps = Pat(1).steps("all_gather", apart, apart)
    # A rank sends cell `first` further on to the rank `low` back, for which it lies `first + low` further on.
    walk = [messages[0].cells[0] + -messages[0].target % apart for messages in steps.rounds]
    assert walk == NCCL_WALK[apart]


@pytest.mark.parametrize(
    ("limit_", "ranks", "rounds"),
    [(0, 8, 3), (1, 8, 7), (2, 8, 4), (4, 8, 3), (64, 8, 3), (3, 8, 4), (0, 9, 5), (1, 3, 2)],
)
def test_pat_takes_more_rounds_where_fewer_chunks_share_a_message(limit_: int, ranks: int, rounds: int):
    assert value(Pat(limit_).forms["all_gather"].rounds, {n: ranks}) == rounds


def test_algorithms_with_parameters_stand_on_the_shelf_with_these():
    assert ALGORITHMS["bidirectional_ring"] == Rings("bidirectional_ring", channels=2, bidirectional=True)
    assert ALGORITHMS["multi_ring"] == Rings("multi_ring", channels=4)
    assert ALGORITHMS["chain"] == Chain(segments=8)
    assert ALGORITHMS["hierarchical"] == Hierarchical(ranks_per_node=8)
    assert ALGORITHMS["rail"] == Rail(ranks_per_node=8)
    assert ALGORITHMS["pat"] == Pat(aggregation=0)
    assert value(ALGORITHMS["chain"].forms["broadcast"].rounds, {n: 4}) == 10


def test_rings_go_both_ways_or_in_different_steps():
    assert "opposite" in ALGORITHMS["bidirectional_ring"].how
    assert "opposite" not in ALGORITHMS["multi_ring"].how
    both, many = ALGORITHMS["bidirectional_ring"], ALGORITHMS["multi_ring"]
    assert (both.strides(8), Rings("x", 4, bidirectional=True).strides(5)) == ((1, 7), (1, 4, 1, 4))
    assert [many.strides(ranks) for ranks in (2, 5, 6, 8)] == [
        (1,) * 4,
        (1, 2, 3, 4),
        (1, 5, 1, 5),
        (1, 3, 5, 7),
    ]


def test_forms_after_each_other_add_up():
    one, other = Form(S, 2 * S, 3 * S, n, 5 * S), Form(7 * S, 11 * S, 13 * S, 17 * n, 19 * S)
    assert one + other == Form(8 * S, 13 * S, 16 * S, 18 * n, 24 * S)


def test_counting_functions_count():
    for x in range(1, 300):
        assert 2 ** log2_ceiling.count(x) >= x > (2 ** log2_ceiling.count(x) - 1) // 2
        assert power2_floor.count(x) <= x < 2 * power2_floor.count(x)
        assert ones_below.count(x) == sum(y.bit_count() for y in range(x))
        assert (log2_ceiling(x), power2_floor(x), ones_below(x)) == tuple(
            value(function(n), {n: x}) for function in (log2_ceiling, power2_floor, ones_below)
        )
