"""Prices: bytes between nodes are what one counts by walking through an algorithm, message by message."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Integer

from meshcost import testing
from meshcost.collectives import ALGORITHMS
from meshcost.collectives.algorithm import chunks
from meshcost.event import Event
from meshcost.job import Job, analyze
from meshcost.mesh import EXPERT_AXES
from meshcost.price import Pricer
from meshcost.unroll import group_of

SOME = settings(max_examples=max(settings().max_examples // 2, 20))
FORMS = [(name, op) for name, algorithm in ALGORITHMS.items() for op in algorithm.forms if op != "recv"]

Message = tuple[int, int, int]


def messages(name: str, op: str, size: int, parts: list[int], shift: int) -> list[Message]:
    """Every message of one call as (from, to, elements), written down from the papers and not from the package."""
    each, whole = range(size), sum(parts)
    match name, op:
        case _, "send":
            return [(i, (i + shift) % size, whole) for i in each]
        case "ring", "reduce_scatter":
            return [(i, (i + 1) % size, parts[(i - k - 1) % size]) for k in range(size - 1) for i in each]
        case "ring", "all_gather":
            return [(i, (i + 1) % size, parts[(i - k) % size]) for k in range(size - 1) for i in each]
        case "ring", "all_reduce":
            return messages(name, "reduce_scatter", size, parts, 0) + messages(name, "all_gather", size, parts, 0)
        case "ring", "broadcast" | "reduce":
            return [(i, i + 1, whole) for i in each if i + 1 < size]
        case "tree", "broadcast":
            return [(i, i + 2**k, whole) for k in range(20) for i in range(2**k) if i + 2**k < size]
        case "tree", "reduce":
            return [(i, j, whole) for j, i, whole in messages(name, "broadcast", size, parts, 0)]
        case "tree", "all_reduce":
            return messages(name, "reduce", size, parts, 0) + messages(name, "broadcast", size, parts, 0)
        case "direct", "all_reduce":
            return [(i, j, whole) for i in each for j in each if i != j]
        case "direct", "broadcast":
            return [(0, j, whole) for j in each if j]
        case "direct", "reduce":
            return [(j, 0, whole) for j in each if j]
        case "direct", "all_gather":
            return [(i, j, parts[i]) for i in each for j in each if i != j]
        case _, "all_to_all" | "reduce_scatter":
            return [(i, j, parts[j]) for i in each for j in each if i != j]
    raise AssertionError((name, op))


def counted(event: Event, groups, gpus_per_node: int, name: str) -> tuple[int, int, int]:
    """Bytes of one call: the most that a rank sends, the most that a rank receives, and, of the ranks that send the
    most messages, the most that one sends to another node.
    """
    parts = [x * event.item_bytes for x in chunks(event.payload_bytes // event.item_bytes, event.group_size)]
    sent, received, between, often = Counter(), Counter(), Counter(), Counter()
    for group in groups:
        for source, target, amount in messages(name, event.op, event.group_size, parts, event.shift or 1):
            one, other = group[source], group[target]
            sent[one, group] += amount
            often[one, group] += 1
            received[other, group] += amount
            between[one, group] += amount * (one // gpus_per_node != other // gpus_per_node)
    most = max(often.values())
    busy = [key for key in between if often[key] == most]
    return max(sent.values()), max(received.values()), max(between[key] for key in busy)


@pytest.mark.parametrize(("name", "op"), FORMS)
@SOME
@given(mesh=testing.meshes(), each=st.integers(1, 5), data=st.data())
def test_bytes_between_nodes_are_those_of_the_messages(name, op, mesh, each, data):
    axes = [axis for axis in mesh.axes if mesh.size(axis) > 1]
    own = [axis for axis in EXPERT_AXES if mesh.expert and mesh.expert[axis] > 1]
    names = data.draw(st.sampled_from([kind for kind in (axes, own) if kind] or [[]]))
    if not names:
        return
    some = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    size = mesh.size(*some)
    payload = Integer(each * size * 2)
    shift = data.draw(st.integers(1, size - 1)) if op == "send" else 0
    stages = tuple(range(mesh.stages))
    event = Event("x", op, tuple(some), size, "forward", "why", "bf16", payload, Integer(1), {}, stages, item_bytes=2, shift=shift)
    price = Pricer(mesh, {op: name}).price(event, Integer(size)).priced
    sent, received, between = counted(event, [tuple(x) for x in mesh.groups(tuple(some))], mesh.gpus_per_node, name)
    assert price.sent_bytes == sent
    assert price.received_bytes == (0 if op == "send" else received)
    assert price.inter_node_bytes == between
    assert price.intra_node_bytes + price.inter_node_bytes == price.sent_bytes


@SOME
@given(testing.jobs())
def test_bytes_between_nodes_in_a_job_are_those_of_the_messages(job: Job):
    """With the events that jobs really have: some stages only, pairs of stages, distances of pipeline messages."""
    ledger = analyze(job)
    for event in ledger:
        if event.op == "recv" or event.payload_bytes % (event.group_size * event.item_bytes):
            continue
        ranks = [rank for rank in range(job.world_size) if job.mesh.stage(rank) in event.stages]
        groups = {tuple(group_of(event, job.mesh, rank)) for rank in ranks}
        senders = set(ranks)
        parts = chunks(event.payload_bytes // event.item_bytes, event.group_size)
        between, often = Counter(), Counter()
        for group in groups:
            for source, target, amount in messages(event.priced.algorithm, event.op, event.group_size, parts, event.shift or 1 if event.op == "send" else 1):
                one, other = group[source], group[target]
                if one in senders:
                    often[one] += 1
                    crosses = one // job.mesh.gpus_per_node != other // job.mesh.gpus_per_node
                    between[one] += amount * event.item_bytes * crosses
        most = max(often.values())
        expected = max(between[rank] for rank in often if often[rank] == most)
        assert event.priced.inter_node_bytes == expected, event


@SOME
@given(testing.jobs())
def test_totals_are_sums_of_events(job: Job):
    ledger = analyze(job)
    for stage in range(job.mesh.stages):
        for key in ("strategy", "op", "phase", "axis", "why", "dtype", "algorithm"):
            split = ledger.group(key, stage=stage).values()
            for name in ("calls", "payload_bytes", "sent_bytes", "received_bytes", "intra_node_bytes", "inter_node_bytes"):
                assert sum(getattr(x, name) for x in split) == getattr(ledger.by_stage[stage], name)
    busiest = ledger.totals
    assert busiest.sent_bytes == max(sums.sent_bytes for sums in ledger.by_stage)
    ranks = range(job.world_size)
    assert max(ledger.rank_totals(rank).sent_bytes for rank in ranks) <= busiest.sent_bytes
    for rank in ranks:
        assert ledger.rank_totals(rank).calls == ledger.by_stage[job.mesh.stage(rank)].calls
