"""Operations: what each does to the buffers, checked against sums and transposes of real numbers, and each other."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy import Expr, Integer, simplify

from meshcost.collectives.operations import (
    GATHER,
    OPERATIONS,
    OTHERS,
    SCATTER,
    Cell,
    Operation,
    apply,
    compose,
    operation,
    ring_difference,
)
from meshcost.errors import MeshcostError, UnknownAlgorithm
from meshcost.formula import value
from meshcost.ledger import OPERATIONS as CALLS
from meshcost.symbols import S, n

SIZES = (*range(2, 10), 16, 33)
MOVING = {**OPERATIONS, "gather": GATHER, "scatter": SCATTER}
every_operation = pytest.mark.parametrize("op", MOVING.values(), ids=MOVING)


def expected(op: str, data: np.ndarray) -> np.ndarray:
    """What NumPy says the ranks end with; not-a-number where nothing is promised. ``data`` is [rank, chunk]."""
    nothing, total, ranks = np.full(data.shape, np.nan), data.sum(0), len(data)
    own = np.eye(ranks, dtype=bool)
    first, second = (np.arange(ranks)[:, None] == i for i in (0, 1))
    return {
        "send_recv": lambda: np.where(first | second, data[0], nothing),
        "broadcast": lambda: np.tile(data[0], (ranks, 1)),
        "reduce": lambda: np.where(first, total, nothing),
        "all_reduce": lambda: np.tile(total, (ranks, 1)),
        "reduce_scatter": lambda: np.where(own, total, nothing),
        "all_gather": lambda: np.tile(np.diag(data), (ranks, 1)),
        "all_to_all": lambda: data.T,
        "gather": lambda: np.where(first, np.diag(data), nothing),
        "scatter": lambda: np.where(own, data[0], nothing),
    }[op]()


@every_operation
@pytest.mark.parametrize("ranks", SIZES)
def test_the_state_after_is_what_numpy_computes(op: Operation, ranks: int):
    data = np.random.default_rng(ranks).integers(-(10**6), 10**6, (ranks, ranks)).astype(float)

    def number(cell: Cell) -> float:
        return np.nan if cell is None else sum(data[rank, chunk] for rank, chunk in cell)

    found = np.array([[number(cell) for cell in row] for row in op.after(ranks)])
    np.testing.assert_array_equal(found, expected(op.name, data))


@every_operation
@pytest.mark.parametrize("ranks", SIZES)
def test_every_rank_starts_with_its_own_data_only(op: Operation, ranks: int):
    for rank, row in enumerate(op.before(ranks)):
        assert len(row) == ranks
        for chunk, cell in enumerate(row):
            assert cell in (None, frozenset({(rank, chunk)}))


@every_operation
@pytest.mark.parametrize("ranks", SIZES)
def test_an_operation_needs_only_what_was_there_and_uses_all_of_it(op: Operation, ranks: int):
    before, after = op.before(ranks), op.after(ranks)
    given_, used = ({x for row in state for cell in row for x in cell or ()} for state in (before, after))
    assert used == given_
    assert apply(op, before) == after


def held(op: Operation, ranks: int) -> tuple[Expr, Expr]:
    """The most bytes that one rank holds before and after."""
    states = op.before(ranks), op.after(ranks)
    most = (max(sum(cell is not None for cell in row) for row in state) for state in states)
    before, after = (S * Integer(cells) / n for cells in most)
    return before, after


@every_operation
@pytest.mark.parametrize("ranks", SIZES)
def test_the_logical_view_is_what_the_pictures_hold(op: Operation, ranks: int):
    for said, found in zip((op.contributes, op.ends_with), held(op, ranks), strict=True):
        assert value(said, {S: ranks, n: ranks}) == value(found, {S: ranks, n: ranks})


def must_move(op: Operation, ranks: int) -> float:
    """Chunks that the busiest rank must send, seen from the data: what has to leave a rank, or to arrive on average."""
    after = op.after(ranks)
    leaving = [
        {chunk for other, row in enumerate(after) if other != rank
         for cell in row for source, chunk in cell or () if source == rank}
        for rank in range(ranks)
    ]  # fmt: skip
    arriving = [
        sum(any(source != rank for source, _ in cell or ()) for cell in row) for rank, row in enumerate(after)
    ]
    return max(*map(len, leaving), max(arriving) if op is GATHER else sum(arriving) / ranks)


@every_operation
@pytest.mark.parametrize("ranks", SIZES)
def test_the_lower_bound_is_what_the_data_demand(op: Operation, ranks: int):
    bound = value(op.lower_bound, {S: ranks, n: ranks})
    # Adding and spreading share no message, so an all-reduce needs more than either: Patarasuk and Yuan 2009.
    needed = 2 * (ranks - 1) if op.name == "all_reduce" else must_move(op, ranks)
    assert bound == needed
    assert bound >= must_move(op, ranks)


@pytest.mark.parametrize("ranks", SIZES)
def test_a_gather_has_each_chunk_exactly_once(ranks: int):
    for row in operation("all_gather").after(ranks):
        assert [cell and sorted(cell) for cell in row] == [[(i, i)] for i in range(ranks)]


@pytest.mark.parametrize("ranks", SIZES)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(ranks: int):
    halves = operation("reduce_scatter"), operation("all_gather")
    assert compose(*halves, ranks) == operation("all_reduce").after(ranks)


@pytest.mark.parametrize("ranks", SIZES)
def test_an_all_reduce_is_a_reduce_and_a_broadcast(ranks: int):
    halves = operation("reduce"), operation("broadcast")
    assert compose(*halves, ranks) == operation("all_reduce").after(ranks)


@pytest.mark.parametrize("ranks", SIZES)
def test_an_all_to_all_undoes_itself(ranks: int):
    exchange = operation("all_to_all")
    assert compose(exchange, exchange, ranks) == exchange.before(ranks)


def test_the_ring_forms_add_up():
    assert ring_difference() == 0


def test_summing_a_sum_again_is_noticed():
    with pytest.raises(MeshcostError, match=r"all_reduce would count chunk 0 of rank 1 twice\."):
        compose(operation("all_reduce"), operation("all_reduce"), 3)


def test_a_missing_chunk_is_noticed():
    with pytest.raises(MeshcostError, match=r"all_to_all needs chunk 0 of rank 1, which is empty\."):
        compose(operation("reduce"), operation("all_to_all"), 3)


# NVIDIA/nccl-tests doc/PERFORMANCE.md; send and receive: src/sendrecv.cu.
PUBLISHED = {
    "send_recv": Integer(1),
    "broadcast": Integer(1),
    "reduce": Integer(1),
    "all_reduce": 2 * (n - 1) / n,
    "reduce_scatter": (n - 1) / n,
    "all_gather": (n - 1) / n,
    "all_to_all": (n - 1) / n,
    "gather": (n - 1) / n,
    "scatter": (n - 1) / n,
}


@every_operation
def test_the_factor_of_nccl_tests_is_the_published_one(op: Operation):
    assert simplify(op.busbw_factor - PUBLISHED[op.name]) == 0


def test_every_call_of_a_ledger_belongs_to_one_operation():
    assert sorted(call for op in OPERATIONS.values() for call in op.calls) == sorted(CALLS)


@every_operation
def test_an_operation_is_found_by_every_spelling(op: Operation):
    for call in (op.name, *op.calls):
        assert {operation(spelling) for spelling in (call, call.replace("_", "-"), call.upper())} == {op}


@given(st.text(max_size=30))
def test_anything_else_is_refused_in_one_sentence(name: str):
    spelled = name.strip().lower().replace("-", "_")
    if spelled in OPERATIONS or spelled in OTHERS or spelled in CALLS:
        return
    with pytest.raises(UnknownAlgorithm) as caught:
        operation(name)
    assert "choose from send_recv, broadcast, reduce, " in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_slip_of_the_pen_gets_a_hint():
    with pytest.raises(UnknownAlgorithm, match=r"Did you mean all_gather\?"):
        operation("all_gahter")
