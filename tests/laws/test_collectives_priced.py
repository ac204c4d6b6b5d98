"""Prices of every algorithm of the shelf: what crosses nodes is what its schedule sends from one node to another."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Integer

from meshcost import testing
from meshcost.collectives import ALGORITHMS, Algorithm
from meshcost.collectives.hierarchical import OnNodes
from meshcost.crossing import placed
from meshcost.event import OPERATIONS, Event
from meshcost.formula import bind
from meshcost.mesh import Mesh
from meshcost.price import Pricer, totals_of

CASES = [
    (name, op)
    for name, algorithm in ALGORITHMS.items()
    for op in algorithm.forms
    if op in OPERATIONS and op not in ("send", "recv")
]
FEW = settings(max_examples=max(settings().max_examples // 3, 10))


def called(op: str, axes: tuple[str, ...], ranks: int, payload: Integer, *, stages: int = 1) -> Event:
    everywhere = tuple(range(stages))
    return Event(
        "x", op, axes, ranks, "forward", "why", "bf16", payload, Integer(1), {}, everywhere, item_bytes=2
    )


def neighbours(nodes: list[int]) -> list[int]:
    """Sizes of equal blocks of a group that never reach over two nodes."""
    fits = [x for x in range(1, len(nodes) + 1) if len(nodes) % x == 0]
    return [x for x in fits if all(len(set(nodes[i : i + x])) == 1 for i in range(0, len(nodes), x))]


def between(algorithm: Algorithm, op: str, nodes: list[int], elements: int) -> int:
    """Elements that cross nodes, of the ranks that send most the one that sends most of it between nodes."""
    ranks = len(nodes)
    sent, crossing = [0] * ranks, [0] * ranks
    steps = algorithm.steps(op, ranks, elements)
    for message in (x for messages in steps.rounds for x in messages):
        if message.source < ranks:
            sent[message.source] += steps.size(message)
            there = nodes[message.target] if message.target < ranks else -len(set(nodes))
            crossing[message.source] += steps.size(message) * (nodes[message.source] != there and there != -1)
    return max(crossing[i] for i in range(ranks) if sent[i] == max(sent))


@pytest.mark.parametrize(("name", "op"), CASES)
@FEW
@given(mesh=testing.meshes(), each=st.integers(1, 3), data=st.data())
def test_bytes_between_nodes_are_those_of_the_schedule(
    name: str, op: str, mesh: Mesh, each: int, data: st.DataObject
):
    axes = [axis for axis in mesh.axes if mesh.size(axis) > 1]
    if not axes:
        return
    some = tuple(data.draw(st.lists(st.sampled_from(axes), min_size=1, max_size=2, unique=True)))
    ranks = mesh.size(*some)
    if ranks > 64:
        return
    groups = [[rank // mesh.gpus_per_node for rank in group] for group in mesh.groups(some)]
    algorithm = ALGORITHMS[name]
    if isinstance(algorithm, OnNodes):
        algorithm = algorithm.placed(max(set.intersection(*(set(neighbours(row)) for row in groups))))
    chunks, pieces = algorithm.cut(op, ranks)
    payload = Integer(each * chunks * pieces * 2)
    event = called(op, some, ranks, payload, stages=mesh.stages)
    price = Pricer(mesh, {op: name}).price(event, Integer(ranks)).priced
    elements = int(payload) // 2
    positions = algorithm.by_position(op, ranks, elements)
    assert (price.sent_bytes, price.received_bytes) == tuple(
        2 * max(side) for side in zip(*positions, strict=True)
    )
    assert [price.at(i) for i in range(ranks)] == [(2 * sent, 2 * received) for sent, received in positions]
    assert price.inter_node_bytes == 2 * max(between(algorithm, op, row, elements) for row in groups)
    assert price.intra_node_bytes == price.sent_bytes - price.inter_node_bytes


@pytest.mark.parametrize(("name", "op"), CASES)
@FEW
@given(mesh=testing.meshes(24), elements=st.integers(1, 60), data=st.data())
def test_what_each_rank_sends_between_nodes_is_what_its_schedule_sends(
    name: str, op: str, mesh: Mesh, elements: int, data: st.DataObject
):
    """Also where chunks differ, or some are empty: a sum of one number over many ranks."""
    axes = [axis for axis in mesh.axes if mesh.size(axis) > 1]
    if not axes:
        return
    some = tuple(data.draw(st.lists(st.sampled_from(axes), min_size=1, max_size=2, unique=True)))
    ranks, stages = mesh.size(*some), mesh.stages
    event = called(op, some, ranks, Integer(2 * elements), stages=stages)
    priced = Pricer(mesh, {op: name}).price(event, Integer(ranks))
    algorithm, sums = placed(event, mesh, name), Counter[str]()
    steps = algorithm.steps(op, ranks, elements)
    for group in mesh.groups(some):
        nodes = [rank // mesh.gpus_per_node for rank in group]
        sent, crossing = [0] * ranks, [0] * ranks
        for message in (x for messages in steps.rounds for x in messages if x.source < ranks):
            leaves = (
                len(set(nodes)) > 1
                if message.target >= ranks
                else nodes[message.source] != nodes[message.target]
            )
            sent[message.source] += 2 * steps.size(message)
            crossing[message.source] += 2 * steps.size(message) * leaves
        sums.update(sent=sum(sent), crossing=sum(crossing))
        for at, rank in enumerate(group):
            paid = totals_of(priced, mesh, rank)
            assert (paid.sent_bytes, paid.inter_node_bytes) == (sent[at], crossing[at])
            assert paid.intra_node_bytes == sent[at] - crossing[at]
    assert priced.cluster_sent_bytes == sums["sent"]
    assert priced.cluster_inter_node_bytes == sums["crossing"]


@pytest.mark.parametrize(("name", "op"), CASES)
@FEW
@given(ranks=st.integers(2, 24), elements=st.integers(1, 1000))
def test_prices_of_uneven_buffers_are_exact_rank_by_rank(name: str, op: str, ranks: int, elements: int):
    mesh = Mesh({"data": ranks}, gpus_per_node=next(x for x in (8, 6, 4, 1) if ranks % x == 0 or ranks < x))
    event = called(op, ("data",), ranks, Integer(2 * elements))
    price = Pricer(mesh, {op: name}).price(event, Integer(ranks)).priced
    algorithm = ALGORITHMS[name]
    if isinstance(algorithm, OnNodes):
        algorithm = algorithm.placed(min(mesh.gpus_per_node, ranks))
    positions = [(2 * sent, 2 * received) for sent, received in algorithm.by_position(op, ranks, elements)]
    assert [price.at(i) for i in range(ranks)] == positions
    assert (bind(price.sent, {}), bind(price.received, {})) == (price.sent_bytes, price.received_bytes)
    assert (price.sent_bytes, price.received_bytes) == tuple(map(max, zip(*positions, strict=True)))
