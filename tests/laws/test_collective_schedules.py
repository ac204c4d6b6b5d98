"""Schedules: what is counted on them is the closed form, and replaying them gives what the operation promises."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshcost.collectives import ALGORITHMS, Algorithm
from meshcost.collectives.cells import cut_as
from meshcost.collectives.chain import Chain
from meshcost.collectives.hierarchical import OnNodes
from meshcost.collectives.operations import OPERATIONS, operation
from meshcost.collectives.optimality import node_size
from meshcost.collectives.pat import Pat
from meshcost.collectives.rings import Rings
from meshcost.collectives.schedule import Message, Steps, count, ports, replay
from meshcost.errors import MeshcostError, UnknownAlgorithm
from meshcost.formula import value
from meshcost.symbols import S, n

RANKS = range(1, 34)
ENDS = ("send", "recv")
CASES = [(name, op) for name, algorithm in ALGORITHMS.items() for op in algorithm.forms]
GROUPS = [(name, op) for name, op in CASES if op not in ENDS]
FEW = settings(max_examples=max(settings().max_examples // 6, 8))

every_case = pytest.mark.parametrize(("name", "op"), CASES)


#: Up to so many ranks algorithms stand with other parameters, too; a larger group is like a smaller one to them.
VARIED = 20


def variants(name: str, ranks: int) -> Iterator[Algorithm]:
    """The algorithm of the shelf, on nodes that so many ranks fill, and the same with other parameters."""
    algorithm = ALGORITHMS[name]
    match algorithm:
        case OnNodes():
            others = [algorithm.placed(each) for each in range(1, ranks + 1) if ranks % each == 0]
            yield algorithm.placed(node_size(ranks))
        case Chain():
            others = [Chain(1), Chain(3)]
            yield algorithm
        case Pat():
            others = [Pat(1), Pat(2), Pat(7)]
            yield algorithm
        case Rings(bidirectional=False):
            others = [Rings(name, 1), Rings(name, 3)]
            yield algorithm
        case _:
            others = []
            yield algorithm
    if ranks <= VARIED:
        yield from others


@cache
def made(algorithm: Algorithm, op: str, ranks: int) -> Steps:
    return algorithm.steps(op, ranks, 0)


def amounts(algorithm: Algorithm, op: str, ranks: int) -> Iterator[int]:
    """Buffers of whole cells, of a few elements more, and of fewer elements than cells."""
    chunks, pieces = algorithm.cut(op, ranks)
    yield from (chunks * pieces, chunks * pieces - 1, 2 * chunks * pieces + ranks // 2 + 1)


def promised(op: str, ranks: int, cells: int, *, start: bool) -> list[dict[int, set[int]]]:
    """Whose data each rank has in each cell, before or after: as ``operations`` says, or by definition."""
    each = range(ranks)
    if op == "barrier":
        return [{cell: {cell} for cell in ([i] if start else each)} for i in each]
    if op in ("gather", "scatter"):
        root = [{cell: {cell if op == "gather" else 0} for cell in each}] + [{}] * (ranks - 1)
        own = [{i: {i if op == "gather" else 0}} for i in each]
        return own if (op == "gather") == start else root
    meaning = operation(op)
    state = meaning.before(ranks) if start else meaning.after(ranks)
    held = [{chunk: {rank for rank, _ in cell} for chunk, cell in enumerate(row) if cell} for row in state]
    if op == "all_to_all":
        return [{i * ranks + j if start else j * ranks + i: held[i][j] for j in each} for i in each]
    if op in ("reduce_scatter", "all_gather"):
        pieces = cells // ranks
        return [{cell: row[cell // pieces] for cell in range(cells) if cell // pieces in row} for row in held]
    if op in ENDS and not start:
        held[0] = {}  # the sender keeps its message, which no schedule needs to say
    assert all(set(row) in (set(), set(each)) for row in held)
    return [{cell: row[0] for cell in range(cells) if row} for row in held]


@every_case
@pytest.mark.parametrize("few", [range(1, 12), range(12, 25), range(25, 34)], ids=["few", "some", "many"])
def test_a_replay_gives_every_rank_what_the_operation_promises(name: str, op: str, few: range):
    for ranks in few:
        for algorithm in variants(name, ranks):
            steps = made(algorithm, op, ranks)
            cells = len(steps.cell_elements)
            before, after = (promised(op, ranks, cells, start=start) for start in (True, False))
            assert [set(cells) for cells in steps.start] == [set(row) for row in before]
            assert [set(cells) for cells in steps.end] == [set(row) for row in after]
            found = replay(steps)
            for rank, row in enumerate(after):
                assert {cell: found[rank][cell] for cell in row} == row, (algorithm, ranks, rank)


@every_case
def test_what_is_counted_is_the_closed_form(name: str, op: str):
    """Sent and received rank by rank for any buffer; rounds, total and reduction work of the busiest rank."""
    for ranks in RANKS:
        for algorithm in variants(name, ranks):
            steps = made(algorithm, op, ranks)
            for elements in amounts(algorithm, op, ranks):
                check(
                    algorithm,
                    replace(steps, cell_elements=algorithm.cells(op, ranks, elements).sizes()),
                    elements,
                )


def check(algorithm: Algorithm, steps: Steps, elements: int) -> None:
    op, ranks, found = steps.op, steps.ranks, count(steps)
    at = {S: elements, n: ranks}
    if op not in ENDS:
        assert tuple(algorithm.by_position(op, ranks, elements)) == found.moved
    if ranks == 1:
        assert found == (((0, 0),), (0,), 0, 0)
        return
    form = algorithm.forms[op]
    assert found.rounds == value(form.rounds, at)
    busiest = tuple(map(max, zip(*found.moved, strict=True)))
    if op in ENDS:
        assert (found.moved[0][0], found.moved[1][1]) == (elements, elements)
        assert value(form.sent + form.received, at) == value(form.total, at) == found.total == elements
        return
    wire = algorithm.wire(op, ranks=ranks, elements=elements, item=1)
    assert busiest == tuple(value(side, at) for side in wire)
    if algorithm.even(op, ranks, elements):
        assert busiest == (value(form.sent, at), value(form.received, at))
        assert found.total == value(form.total, at)
        assert max(found.added) == value(form.added, at)
    if not algorithm.switch:
        assert found.total == sum(received for _, received in found.moved)


def drawn_sizes(data: st.DataObject, cells: int) -> list[int]:
    """Cells of any sizes: many are empty, some are large."""
    return data.draw(st.lists(st.sampled_from([0, 1, 2, 7, 100]), min_size=cells, max_size=cells))


@pytest.mark.parametrize(("name", "op"), GROUPS)
@FEW
@given(ranks=st.integers(2, 24), data=st.data())
def test_any_chunking_is_counted_as_the_closed_form_says(name: str, op: str, ranks: int, data: st.DataObject):
    algorithm = data.draw(st.sampled_from(list(variants(name, ranks))))
    cells = drawn_sizes(data, len(made(algorithm, op, ranks).cell_elements))
    if op == "barrier":
        cells = [0] * len(cells)
    steps = algorithm.steps(op, ranks, sum(cells), cells)
    moved = tuple(algorithm.moved(op, at, ranks, cut_as(cells)) for at in range(ranks))
    assert count(steps).moved == moved


@every_case
@FEW
@given(ranks=st.integers(34, 56), elements=st.integers(0, 10**9), data=st.data())
def test_larger_groups_keep_the_promise_too(
    name: str, op: str, ranks: int, elements: int, data: st.DataObject
):
    algorithm = data.draw(st.sampled_from(list(variants(name, ranks))))
    steps = algorithm.steps(op, ranks, elements)
    check(algorithm, steps, elements)
    if ranks < 45:
        after = promised(op, ranks, len(steps.cell_elements), start=False)
        found = replay(steps)
        assert all({cell: rank[cell] for cell in row} == row for rank, row in zip(found, after, strict=False))


@every_case
def test_an_algorithm_uses_as_many_ports_as_it_says(name: str, op: str):
    for ranks in RANKS:
        for one in variants(name, ranks):
            assert max(ports(made(one, op, ranks))) <= (one.ports or ranks - 1)
    algorithm, ranks = next(variants(name, RANKS[-1])), RANKS[-1]
    if op not in ENDS and not algorithm.switch:
        assert max(ports(made(algorithm, op, ranks))) == (algorithm.ports or ranks - 1)


@every_case
def test_ranks_are_alike_where_they_are_said_to_be(name: str, op: str):
    """With equal cells; for the ends of a message it means the position that is asked for."""
    same = True
    for ranks in range(2, 34):
        for algorithm in variants(name, ranks):
            chunks, pieces = algorithm.cut(op, ranks)
            same &= len(set(algorithm.by_position(op, ranks, 4 * chunks * pieces))) == 1
    assert same == (op in ALGORITHMS[name].alike)


@pytest.mark.parametrize(("name", "op"), GROUPS)
def test_the_pattern_is_the_schedule_added_up(name: str, op: str):
    for ranks in range(2, 34):
        for algorithm in variants(name, ranks):
            found = dict.fromkeys(((i, j) for i in range(ranks) for j in range(ranks)), 0)
            for message in (x for messages in made(algorithm, op, ranks).rounds for x in messages):
                if not algorithm.switch:
                    found[message.source, message.target] += len(message.cells)
            edges = {edge: cells for edge, cells in found.items() if cells}
            pattern = algorithm.pattern(op, ranks)
            if pattern == "switch":
                assert algorithm.switch
            elif pattern == "next":
                assert {(source + 1) % ranks == target for source, target in edges} == {True}
                assert len(set(edges.values())) == 1
            elif pattern == "all":
                assert set(edges) == {(i, j) for i in range(ranks) for j in range(ranks) if i != j}
                assert len(set(edges.values())) == 1
            else:
                said = dict.fromkeys(((source, target) for source, target, _ in pattern), 0)
                for source, target, cells in pattern:
                    said[source, target] += cells
                unit = {cells // said[edge] for edge, cells in edges.items()}
                assert set(said) == set(edges)
                assert len(unit) == 1
                assert all(said[edge] * max(unit) == cells for edge, cells in edges.items())


@pytest.mark.parametrize(("name", "op"), [(name, op) for name, op in GROUPS if op != "barrier"])
def test_of_an_uneven_buffer_the_pattern_says_the_elements_of_each_edge(name: str, op: str):
    for ranks in range(2, 18):
        for algorithm in variants(name, ranks):
            elements = 2 * len(made(algorithm, op, ranks).cell_elements) + ranks // 2 + 1
            steps = algorithm.steps(op, ranks, elements)
            found = Counter[tuple[int, int]]()
            for message in (x for messages in steps.rounds for x in messages):
                found[message.source, message.target] += steps.size(message)
            said = algorithm.pattern(op, ranks, algorithm.cells(op, ranks, elements))
            if not isinstance(said, str):
                added = Counter[tuple[int, int]]()
                for source, target, size in said:
                    added[source, target] += size
                assert added == found, (algorithm, ranks)


@pytest.mark.parametrize(("name", "op"), GROUPS)
def test_a_schedule_without_one_of_its_messages_is_noticed(name: str, op: str):
    """Nothing is sent that is not needed, except where an algorithm says so."""
    ranks = 5
    algorithm = next(variants(name, ranks))
    steps = made(algorithm, op, ranks)
    after = promised(op, ranks, len(steps.cell_elements), start=False)
    redundant = 0
    for number, messages in enumerate(steps.rounds):
        for left_out in messages:
            fewer = tuple(x for x in messages if x is not left_out)
            rounds = (*steps.rounds[:number], fewer, *steps.rounds[number + 1 :])
            try:
                found = replay(replace(steps, rounds=tuple(x for x in rounds if x)))
                kept = all(
                    {cell: rank.get(cell) for cell in row} == row
                    for rank, row in zip(found, after, strict=False)
                )
            except MeshcostError:
                kept = False
            redundant += kept
    # A scatter leaves some chunks where an all-gather brings them again; a switch copies also to whom it has them from.
    said = {
        ("scatter_ring", "broadcast"): 5,
        ("scatter_doubling", "broadcast"): 3,
        ("nvls", "all_reduce"): 5,
        ("sharp", "broadcast"): 1,
    }
    assert redundant == said.get((name, op), 0)


SWAP = Steps(
    "all_reduce",
    2,
    (4,),
    (frozenset({0}),) * 2,
    ((0,), (0,)),
    ((Message(0, 1, (0,), True), Message(1, 0, (0,), True)),),
)
HALF = (Message(0, 1, (0,), True),)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (replace(SWAP, rounds=(SWAP.rounds[0], ())), r"round 1: nobody sends"),
        (
            replace(SWAP, rounds=SWAP.rounds * 2),
            r"round 1: 0 -> 1, cells 0, add adds a contribution to cell 0 twice",
        ),
        (replace(SWAP, rounds=(HALF * 2,)), r"adds a contribution to cell 0 twice"),
        (replace(SWAP, rounds=((Message(0, 0, (0,), True),),)), r"rank 0 sends to itself"),
        (
            replace(SWAP, rounds=((Message(0, 1, (1,), False),),)),
            r"sends cell 1, which its source does not hold",
        ),
        (
            replace(SWAP, rounds=((*HALF, Message(0, 1, (0,), False)),)),
            r"two messages write cell 0 of rank 1",
        ),
        (
            replace(SWAP, rounds=((Message(0, 1, (0,), False), *HALF),)),
            r"two messages write cell 0 of rank 1",
        ),
        (replace(SWAP, rounds=((Message(0, 1, (0,), False),) * 2,)), r"two messages write cell 0 of rank 1"),
        (
            replace(SWAP, start=(frozenset({0}), frozenset())),
            r"round 0: 1 -> 0.* sends cell 0, which its source",
        ),
        (
            replace(SWAP, start=(frozenset({0}), frozenset()), rounds=(HALF,)),
            r"adds to cell 0, which the target does not",
        ),
        (replace(SWAP, end=((0, 1), (0,))), r"rank 0 ends without cells \[1\]"),
    ],
)
def test_what_could_not_work_is_refused(broken: Steps, said: str):
    with pytest.raises(MeshcostError, match=said):
        replay(broken)


def test_a_message_uses_what_its_source_held_when_the_round_began():
    late = replace(SWAP, rounds=((Message(0, 1, (0,), False), Message(1, 0, (0,), False)),))
    assert [set(rank[0]) for rank in replay(late)] == [{1}, {0}]


def test_wrong_questions_are_refused():
    ring, exchange = ALGORITHMS["ring"], ALGORITHMS["pairwise"]
    with pytest.raises(UnknownAlgorithm, match="ring does not perform all_to_all: choose from all_reduce, "):
        ring.steps("all_to_all", 4, 4)
    for cells in ([1, 1, 1], [1, 1, 1, 2]):
        with pytest.raises(MeshcostError, match="takes 4 cells of 4 elements together"):
            ring.steps("all_reduce", 4, 4, cells)
    with pytest.raises(MeshcostError, match="-1 is negative"):
        ring.steps("all_reduce", 2, 0, [1, -1])
    assert exchange.steps("all_to_all", 2, 0, [0, 3, 4, 0]).cell_elements == (0, 3, 4, 0)
    with pytest.raises(
        MeshcostError, match="12 ranks do not fill nodes of 8: choose ranks_per_node from 1, 2, 3, 4, 6, 12"
    ):
        ALGORITHMS["hierarchical"].steps("all_reduce", 12, 12)


def test_the_seven_operations_and_gather_scatter_and_barrier_are_on_the_shelf():
    calls = {call for op in OPERATIONS.values() for call in op.calls}
    assert {op for _, op in CASES} == calls | {"gather", "scatter", "barrier"}
