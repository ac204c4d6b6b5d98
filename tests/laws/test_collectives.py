"""Algorithms: the closed form of each one equals what its ranks send when they are counted one by one."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshcost.collectives import ALGORITHMS, DEFAULTS, choose
from meshcost.collectives.algorithm import Algorithm, chunk
from meshcost.collectives.cells import before_chunk, cut_evenly
from meshcost.collectives.hierarchical import OnNodes
from meshcost.collectives.operations import OPERATIONS
from meshcost.collectives.optimality import LEAST_BYTES
from meshcost.errors import UnknownAlgorithm
from meshcost.formula import bind, value
from meshcost.symbols import S, n

MESSAGES = ("send", "recv")
CASES = [(name, op) for name, algorithm in ALGORITHMS.items() for op in algorithm.forms]
PLAIN = ("ring", "tree", "pairwise", "direct")
ROOTED = ("gather", "scatter")
FEW = settings(max_examples=max(settings().max_examples // 2, 10))
SIZES = range(2, 34)

every_case = pytest.mark.parametrize(("name", "op"), CASES)


def amounts(ranks: int) -> list[int]:
    """Element counts around one, two and many whole chunks, also fewer elements than ranks."""
    return sorted({0, 1, 2, ranks - 1, ranks, ranks + 1, 2 * ranks - 1, 2 * ranks, 3 * ranks + 2, 1000, 1001})


def shelf(name: str, ranks: int) -> Algorithm:
    """The algorithm of that name; on the largest nodes that the ranks fill, if it knows nodes."""
    algorithm = ALGORITHMS[name]
    if not isinstance(algorithm, OnNodes):
        return algorithm
    return algorithm.placed(max(x for x in range(1, algorithm.ranks_per_node + 1) if ranks % x == 0))


def check(name: str, op: str, ranks: int, elements: int, item: int) -> None:
    """The busiest rank sends and receives what the form says, and all together what the total says."""
    algorithm, values = shelf(name, ranks), {S: elements * item, n: ranks}
    positions = algorithm.by_position(op, ranks, elements)
    assert len(positions) == ranks
    wire = algorithm.wire(op, ranks=ranks, elements=elements, item=item)
    busiest = tuple(max(side) * item for side in zip(*positions, strict=True))
    assert busiest == tuple(bind(form, values) for form in wire)
    if op not in MESSAGES:
        sent, received = (sum(side) * item for side in zip(*positions, strict=True))
        assert sent == received or algorithm.switch
        if algorithm.even(op, ranks, elements) or (name in PLAIN and op not in ROOTED):
            assert sent == bind(algorithm.forms[op].total, values)


@pytest.mark.parametrize(
    ("name", "op"), [(name, op) for name, op in CASES if name in PLAIN and op not in ROOTED]
)
def test_the_form_is_what_the_ranks_count(name: str, op: str):
    for ranks in SIZES:
        for elements in amounts(ranks):
            check(name, op, ranks, elements, item=2)


@every_case
@FEW
@given(ranks=st.integers(2, 100), elements=st.integers(0, 10**9), item=st.sampled_from([1, 2, 4, 8]))
def test_the_form_is_what_the_ranks_count_for_any_buffer(
    name: str, op: str, ranks: int, elements: int, item: int
):
    check(name, op, ranks, elements, item)


@every_case
@FEW
@given(ranks=st.integers(2, 60), elements=st.integers(0, 10**6))
def test_all_positions_together_are_each_by_itself(name: str, op: str, ranks: int, elements: int):
    algorithm = shelf(name, ranks)
    elements = 0 if op == "barrier" else elements
    each = [algorithm.position(op, at, ranks, elements) for at in range(ranks)]
    assert algorithm.by_position(op, ranks, elements) == each


@pytest.mark.parametrize(
    ("name", "op"), [("pat", "all_gather"), ("pat", "reduce_scatter"), ("bruck", "all_to_all")]
)
def test_an_uneven_buffer_over_many_ranks_is_priced_in_bounded_time(name: str, op: str):
    start = time.perf_counter()
    ALGORITHMS[name].wire(op, ranks=4096, elements=4096 * 3 + 5, item=2)
    assert time.perf_counter() - start < 5


@every_case
@FEW
@given(ranks=st.integers(2, 60), each=st.integers(0, 10**6), item=st.sampled_from([1, 2, 4, 8]))
def test_where_chunks_are_equal_the_uneven_form_says_the_same(
    name: str, op: str, ranks: int, each: int, item: int
):
    algorithm = shelf(name, ranks)
    chunks, pieces = algorithm.cut(op, ranks)
    elements = 0 if op == "barrier" else each * chunks * pieces
    if elements and name in PLAIN and op not in ROOTED and not algorithm.splits(op):
        return
    form, values = algorithm.forms[op], {S: elements * item, n: ranks}
    uneven = algorithm.uneven(op, ranks=ranks, elements=elements, item=item)
    assert [bind(x, values) for x in (form.sent, form.received)] == [bind(x, values) for x in uneven]


@every_case
@FEW
@given(ranks=st.integers(2, 60), elements=st.integers(0, 10**6))
def test_no_algorithm_moves_less_than_the_lower_bound(name: str, op: str, ranks: int, elements: int):
    """Unless a switch adds and copies."""
    algorithm = shelf(name, ranks)
    if not algorithm.switch and op != "barrier":
        elements *= ranks if op in ROOTED else 1  # the root keeps the largest chunk
        positions = algorithm.by_position(op, ranks, elements)
        least = value(LEAST_BYTES[op], {S: elements, n: ranks})
        assert max(max(x) for x in positions) >= least
        if op not in ("gather", "recv"):
            assert max(x[0] for x in positions) >= least


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op != "send_recv"])
def test_some_algorithm_reaches_the_lower_bound(op: str):
    able = [x.forms[op].sent for x in ALGORITHMS.values() if op in x.forms and not x.switch]
    assert any(sent - LEAST_BYTES[op] == 0 for sent in able)


@pytest.mark.parametrize("ranks", SIZES)
@pytest.mark.parametrize("elements", [1, 7, 1000])
def test_what_one_end_of_a_message_sends_the_other_receives(ranks: int, elements: int):
    direct = ALGORITHMS["direct"]
    sender, receiver = (direct.by_position(op, ranks, elements) for op in MESSAGES)
    assert sender == [(elements, 0)] * ranks
    assert receiver == [(0, elements)] * ranks
    assert {bind(direct.forms[op].total, {S: elements, n: ranks}) for op in MESSAGES} == {elements}


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


@given(ranks=st.integers(1, 20), pieces=st.integers(1, 5), elements=st.integers(0, 1000), data=st.data())
def test_spans_of_cells_are_sums_of_their_sizes(ranks: int, pieces: int, elements: int, data: st.DataObject):
    cells = cut_evenly(ranks, pieces, elements=elements)
    sizes = cells.sizes()
    assert sizes == tuple(
        chunk(j, pieces, chunk(i, ranks, elements)) for i in range(ranks) for j in range(pieces)
    )
    assert before_chunk(ranks, ranks, elements) == sum(sizes) == cells.total == elements
    first, last = sorted(data.draw(st.integers(0, cells.count)) for _ in range(2))
    assert cells.span(first, last) == sum(sizes[first:last])
    assert cells.turn(first, last) == sum(sizes[(first + i) % cells.count] for i in range(last))
    assert cells[first - cells.count] == sizes[first % cells.count]


def test_every_operation_has_a_default_that_performs_it():
    assert set(DEFAULTS) == {op for _, op in CASES}
    assert all(choose(op).name == name for op, name in DEFAULTS.items())
    assert all(choose(op, name) is ALGORITHMS[name] for name, op in CASES)


@pytest.mark.parametrize(
    ("op", "name", "said"),
    [
        ("permute", None, "permute is not an operation: choose from all_reduce, "),
        ("all_to_all", "ring", "all_to_all cannot run as 'ring': choose from pairwise, direct, bruck, rail."),
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
