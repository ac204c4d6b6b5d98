"""Prices: bytes between nodes are what one counts by walking through an algorithm, message by message."""

import pickle
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Integer

from meshcost import testing
from meshcost.collectives import ALGORITHMS
from meshcost.event import Event, Forms
from meshcost.job import Job, analyze
from meshcost.ledger import Ledger
from meshcost.mesh import EXPERT_AXES
from meshcost.price import Pricer
from meshcost.unroll import group_of

SOME = settings(max_examples=max(settings().max_examples // 8, 10))
BOOKS = {
    "ring": ("reduce_scatter", "all_gather", "all_reduce"),
    "tree": ("broadcast", "reduce", "all_reduce"),
    "pairwise": ("all_to_all", "reduce_scatter"),
    "direct": ("all_reduce", "broadcast", "reduce", "all_gather", "all_to_all", "reduce_scatter", "send"),
}
FORMS = [(name, op) for name, ops in BOOKS.items() for op in ops]

Message = tuple[int, int, int]


def chunks(elements: int, ranks: int) -> list[int]:
    return [len(range(i, elements, ranks)) for i in range(ranks)]


def around_the_ring(op: str, size: int, parts: list[int]) -> list[Message]:
    """A turn: in round k rank i passes on the chunk that it got in the round before."""
    if op == "all_reduce":
        return around_the_ring("reduce_scatter", size, parts) + around_the_ring("all_gather", size, parts)
    late = 1 if op == "reduce_scatter" else 0
    return [(i, (i + 1) % size, parts[(i - k - late) % size]) for k in range(size - 1) for i in range(size)]


def along_the_tree(op: str, size: int, whole: int) -> list[Message]:
    """Binomial tree as in MPICH: the root sends to the farthest first, and the distance halves in every round."""
    rounds = [2**k for k in reversed(range(size.bit_length()))]
    down = [(i, i + far, whole) for far in rounds for i in range(0, size, 2 * far) if i + far < size]
    up = [(target, source, whole) for source, target, _ in down]
    return {"broadcast": down, "reduce": up, "all_reduce": up + down}[op]


def directly(op: str, size: int, parts: list[int], shift: int) -> list[Message]:
    """One message for each pair that has something for one another."""
    pairs, whole = [(i, j) for i in range(size) for j in range(size) if i != j], sum(parts)
    match op:
        case "send":
            return [(i, (i + shift) % size, whole) for i in range(size)]
        case "broadcast":
            return [(0, j, whole) for i, j in pairs if i == 0]
        case "reduce":
            return [(i, 0, whole) for i, j in pairs if j == 0]
        case "all_reduce":
            return [(i, j, whole) for i, j in pairs]
        case "all_gather":
            return [(i, j, parts[i]) for i, j in pairs]
    return [(i, j, parts[j]) for i, j in pairs]


def messages(name: str, op: str, size: int, parts: list[int], shift: int) -> list[Message]:
    """Every message of one call as (from, to, bytes), written down from the papers and not from the package."""
    if name == "ring":
        return around_the_ring(op, size, parts)
    return along_the_tree(op, size, sum(parts)) if name == "tree" else directly(op, size, parts, shift)


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
@given(mesh=testing.meshes(24), each=st.integers(1, 5), data=st.data())
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
    event = Event(
        "x",
        op,
        tuple(some),
        size,
        "forward",
        "why",
        "bf16",
        payload,
        Integer(1),
        {},
        stages,
        item_bytes=2,
        shift=shift,
    )
    price = Pricer(mesh, {op: name}).price(event, Integer(size)).priced
    sent, received, between = counted(
        event, [tuple(x) for x in mesh.groups(tuple(some))], mesh.gpus_per_node, name
    )
    assert price.sent_bytes == sent
    assert price.received_bytes == (0 if op == "send" else received)
    assert price.inter_node_bytes == between
    assert price.intra_node_bytes + price.inter_node_bytes == price.sent_bytes


def crossing_in_a_job(event: Event, job: Job) -> int:
    """The most that a rank which makes this call sends to another node, among those that send the most messages."""
    ranks = {rank for rank in range(job.world_size) if job.mesh.stage(rank) in event.stages}
    parts = [x * event.item_bytes for x in chunks(event.payload_bytes // event.item_bytes, event.group_size)]
    sent = messages(event.priced.algorithm, event.op, event.group_size, parts, event.shift)
    between, often = Counter(), Counter()
    for group in {tuple(group_of(event, job.mesh, rank)) for rank in ranks}:
        for source, target, amount in sent:
            often[group[source]] += 1
            nodes = {group[end] // job.mesh.gpus_per_node for end in (source, target)}
            between[group[source]] += amount * (len(nodes) > 1)
    most = max(often[rank] for rank in ranks)
    return max(between[rank] for rank in ranks if often[rank] == most)


@SOME
@given(testing.jobs(largest=16))
def test_bytes_between_nodes_in_a_job_are_those_of_the_messages(job: Job):
    """With the events that jobs really have: some stages only, pairs of stages, distances of pipeline messages.

    A message to a switch is not one to a rank, so that algorithms with one are not looked at here.
    """
    for event in analyze(job):
        if ALGORITHMS[event.priced.algorithm].switch:
            continue
        if event.op != "recv" and event.payload_bytes % (event.group_size * event.item_bytes) == 0:
            assert event.priced.inter_node_bytes == crossing_in_a_job(event, job), event


@SOME
@given(testing.jobs(largest=16))
def test_totals_are_sums_of_events(job: Job):
    ledger = analyze(job)
    for stage in range(job.mesh.stages):
        for key in ("strategy", "op", "phase", "axis", "why", "dtype", "algorithm"):
            split = ledger.group(key, stage=stage).values()
            for name in (
                "calls",
                "payload_bytes",
                "sent_bytes",
                "received_bytes",
                "intra_node_bytes",
                "inter_node_bytes",
            ):
                assert sum(getattr(x, name) for x in split) == getattr(ledger.by_stage[stage], name)


@SOME
@given(testing.jobs(largest=16))
def test_totals_are_those_of_the_busiest_rank(job: Job):
    """Of one rank, not of each event's own busiest: none sends more, and of those that send as much none more elsewhere."""
    ledger = analyze(job)
    for stage in range(job.mesh.stages):
        ranks = [rank for rank in range(job.world_size) if job.mesh.stage(rank) == stage]
        paid = {rank: ledger.rank_totals(rank) for rank in ranks}
        most = max((totals.sent_bytes, totals.inter_node_bytes) for totals in paid.values())
        first = next(rank for rank in ranks if (paid[rank].sent_bytes, paid[rank].inter_node_bytes) == most)
        assert (ledger.busiest_ranks[stage], ledger.by_stage[stage]) == (first, paid[first])
        assert {totals.calls for totals in paid.values()} == {ledger.by_stage[stage].calls}
    assert ledger.totals == ledger.rank_totals(ledger.busiest_rank)
    assert ledger.totals.sent_bytes == max(sums.sent_bytes for sums in ledger.by_stage)


#: Nothing divides: the sum of the loss spares one rank of 20, the shards of embedding and head others.
HYBRID = {
    "model": {
        "model_type": "llama", "hidden_size": 6, "intermediate_size": 10, "num_hidden_layers": 1, "num_attention_heads": 2,
        "vocab_size": 13,
    },
    "parallel": {"data": {"strategy": "fsdp", "size": 20, "replicate": 4}},
    "batch": {"sequence": 4, "global_batch": 20},
}  # fmt: skip


def test_no_rank_need_be_the_busiest_of_every_event():
    ledger = analyze(Job(**HYBRID))
    each = sum(event.totals.sent_bytes for event in ledger)
    assert ledger.totals.sent_bytes == max(ledger.rank_totals(rank).sent_bytes for rank in range(20)) < each


def test_a_gather_at_a_boundary_crosses_nodes_like_any_other():
    """Its event also holds the distance of the message before it, which once was taken for the distance of its own."""
    model = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 256,
    }  # fmt: skip
    parallel = {"tensor": {"size": 2}, "pipeline": {"size": 3, "scatter_gather": True}}
    job = Job(
        model=model, parallel=parallel, batch={"sequence": 8, "global_batch": 4}, cluster={"gpus_per_node": 1}
    )
    testing.check(job)
    gathers = analyze(job).filter(strategy="pipeline", op="all_gather")
    assert len(gathers) > 1
    assert {event.priced.intra_node_bytes for event in gathers} == {0}


# -- closed forms are written when they are read ---------------------------------------------------------------------

#: Vocabulary and heads that leave every buffer uneven over three ranks.
UNEVEN = {"model": "gpt2", "parallel": {"data": 3}, "batch": {"sequence": 8, "global_batch": 3}}


def test_a_bill_writes_no_closed_form():
    ledger = analyze(Job(**UNEVEN))
    assert any(event.priced.runs for event in ledger)
    assert ledger.totals.sent_bytes < sum(sums.payload_bytes for sums in ledger.group("op").values()) * 2
    assert list(ledger.calls(0))
    assert not any("both" in vars(event.priced.forms) for event in ledger)


def test_prices_differ_where_only_their_closed_forms_do():
    price, again = (analyze(Job(**UNEVEN)).events[0].priced for _ in range(2))
    other = replace(price, forms=Forms(lambda: (Integer(1), price.received)))
    assert price == again
    assert hash(price) == hash(again)
    assert price != other


def test_a_ledger_can_go_to_another_process():
    ledger = analyze(Job(**UNEVEN))
    there = pickle.loads(pickle.dumps(ledger))
    assert there == ledger
    assert pickle.loads(pickle.dumps(Ledger.from_dict(there.to_dict()))) == ledger
