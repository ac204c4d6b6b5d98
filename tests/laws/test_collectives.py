"""Algorithms: the closed form of each one equals what its ranks send when they are counted one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshcost.collectives import ALGORITHMS, DEFAULTS, choose
from meshcost.collectives.algorithm import chunk
from meshcost.collectives.operations import OPERATIONS, operation
from meshcost.errors import UnknownAlgorithm
from meshcost.formula import bind, value
from meshcost.symbols import S, n

MESSAGES = ("send", "recv")
CASES = [(name, op) for name, algorithm in ALGORITHMS.items() for op in algorithm.forms]
GROUPS = [(name, op) for name, op in CASES if op not in MESSAGES]
SIZES = range(2, 34)

every_case = pytest.mark.parametrize(("name", "op"), CASES)
every_group = pytest.mark.parametrize(("name", "op"), GROUPS)


def amounts(ranks: int) -> list[int]:
    """Element counts around one, two and many whole chunks, also fewer elements than ranks."""
    return sorted({0, 1, 2, ranks - 1, ranks, ranks + 1, 2 * ranks - 1, 2 * ranks, 3 * ranks + 2, 1000, 1001})


def check(name: str, op: str, ranks: int, elements: int, item: int) -> None:
    """The busiest rank sends and receives what the form says, and all together what the total says."""
    algorithm, values = ALGORITHMS[name], {S: elements * item, n: ranks}
    positions = algorithm.by_position(op, ranks, elements)
    assert len(positions) == ranks
    wire = algorithm.wire(op, even=elements % ranks == 0, item=item)
    busiest = tuple(max(side) * item for side in zip(*positions, strict=True))
    assert busiest == tuple(bind(form, values) for form in wire)
    if op not in MESSAGES:
        sent, received = (sum(side) * item for side in zip(*positions, strict=True))
        assert sent == received == bind(algorithm.forms[op].total, values)


@every_case
def test_the_form_is_what_the_ranks_count(name: str, op: str):
    for ranks in SIZES:
        for elements in amounts(ranks):
            check(name, op, ranks, elements, item=2)


@every_case
@given(ranks=st.integers(2, 300), elements=st.integers(0, 10**9), item=st.sampled_from([1, 2, 4, 8]))
def test_the_form_is_what_the_ranks_count_for_any_buffer(
    name: str, op: str, ranks: int, elements: int, item: int
):
    check(name, op, ranks, elements, item)


@every_case
@given(ranks=st.integers(2, 300), each=st.integers(0, 10**6), item=st.sampled_from([1, 2, 4, 8]))
def test_where_chunks_are_equal_the_uneven_form_says_the_same(
    name: str, op: str, ranks: int, each: int, item: int
):
    values = {S: each * ranks * item, n: ranks}
    even, uneven = (ALGORITHMS[name].wire(op, even=even, item=item) for even in (True, False))
    assert [bind(form, values) for form in even] == [bind(form, values) for form in uneven]


@every_case
@given(ranks=st.integers(2, 300), elements=st.integers(0, 10**6))
def test_no_algorithm_sends_less_than_the_lower_bound(name: str, op: str, ranks: int, elements: int):
    positions = ALGORITHMS[name].by_position(op, ranks, elements)
    side = 1 if op == "recv" else 0
    assert max(x[side] for x in positions) >= value(operation(op).lower_bound, {S: elements, n: ranks})


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op != "send_recv"])
def test_some_algorithm_reaches_the_lower_bound(op: str):
    able = [algorithm.forms[op].sent for algorithm in ALGORITHMS.values() if op in algorithm.forms]
    assert any(sent - operation(op).lower_bound == 0 for sent in able)


@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("elements", [1, 7, 1000])
def test_what_one_end_of_a_message_sends_the_other_receives(ranks: int, elements: int):
    direct = ALGORITHMS["direct"]
    sender, receiver = (direct.by_position(op, ranks, elements) for op in MESSAGES)
    assert sender == [(elements, 0)] * ranks
    assert receiver == [(0, elements)] * ranks
    assert {bind(direct.forms[op].total, {S: elements, n: ranks}) for op in MESSAGES} == {elements}


@every_group
def test_the_pattern_leads_where_the_bytes_go(name: str, op: str):
    algorithm, elements = ALGORITHMS[name], 1001
    for ranks in SIZES:
        pattern = algorithm.pattern(op, ranks)
        sent, received = zip(*algorithm.by_position(op, ranks, elements), strict=True)
        if pattern == "next":
            assert sent == (*received[1:], received[0])
        elif pattern == "all":
            assert min(sent) >= elements // ranks * (ranks - 1)
        else:
            assert all(source != target for source, target in pattern)
            out, into = ([sum(edge[end] == i for edge in pattern) for i in range(ranks)] for end in (0, 1))
            assert sent == tuple(elements * edges for edges in out)
            assert received == tuple(elements * edges for edges in into)


# Counts of the alpha terms in MPICH's table of costs (Thakur, Rabenseifner and Gropp 2005), at n = 2, 3, 5 and 8.
ROUNDS = {
    ("ring", "all_gather"): (1, 2, 4, 7),
    ("ring", "reduce_scatter"): (1, 2, 4, 7),
    ("ring", "all_reduce"): (2, 4, 8, 14),
    ("pairwise", "all_to_all"): (1, 2, 4, 7),
    ("pairwise", "reduce_scatter"): (1, 2, 4, 7),
    ("tree", "broadcast"): (1, 2, 3, 3),
    ("tree", "reduce"): (1, 2, 3, 3),
    ("tree", "all_reduce"): (2, 4, 6, 6),
    ("direct", "all_to_all"): (1, 1, 1, 1),
}


@pytest.mark.parametrize(("name", "op"), ROUNDS)
def test_rounds_are_the_published_ones(name: str, op: str):
    rounds = ALGORITHMS[name].forms[op].rounds
    assert tuple(bind(rounds, {n: ranks}) for ranks in (2, 3, 5, 8)) == ROUNDS[name, op]


@pytest.mark.parametrize(("ranks", "sent"), [(8, [3, 0, 1, 0, 2, 0, 1, 0]), (5, [3, 0, 1, 0, 0])])
def test_a_broadcast_goes_down_a_binomial_tree(ranks: int, sent: list[int]):
    # Measured on Gloo, in another order of ranks: 3, 2, 1, 1, 0, 0, 0, 0 and 3, 1, 0, 0, 0 buffers.
    positions = ALGORITHMS["tree"].by_position("broadcast", ranks, 1)
    assert [x[0] for x in positions] == sent


@given(ranks=st.integers(1, 500), elements=st.integers(0, 10**9))
def test_chunks_are_balanced_and_lose_nothing(ranks: int, elements: int):
    parts = [chunk(at, ranks, elements) for at in range(ranks)]
    assert (len(parts), sum(parts)) == (ranks, elements)
    assert max(parts) - min(parts) <= 1
    assert parts == sorted(parts, reverse=True)


def test_every_operation_has_a_default_that_performs_it():
    assert set(DEFAULTS) == {op for _, op in CASES}
    assert all(choose(op).name == name for op, name in DEFAULTS.items())
    assert all(choose(op, name) is ALGORITHMS[name] for name, op in CASES)


@pytest.mark.parametrize(
    ("op", "name", "said"),
    [
        ("gather", None, "gather is not an operation: choose from all_reduce, "),
        ("all_to_all", "ring", "all_to_all cannot run as 'ring': choose from pairwise, direct"),
        ("all_reduce", "rnig", "Did you mean ring?"),
    ],
)
def test_a_wrong_algorithm_is_refused_with_the_right_ones(op: str, name: str | None, said: str):
    with pytest.raises(UnknownAlgorithm) as caught:
        choose(op, name)
    assert said in str(caught.value)


@every_case
def test_an_algorithm_says_where_it_comes_from(name: str, op: str):
    assert ALGORITHMS[name].name == name
    assert ALGORITHMS[name].source
    assert op in DEFAULTS
