"""Every law over jobs that Hypothesis makes from all strategies, schedules and options; and laws that fail when broken."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sympy import Integer

from meshcost import testing
from meshcost.errors import JobError
from meshcost.event import Forms
from meshcost.job import Job, analyze
from meshcost.ledger import Ledger
from meshcost.models import read_model
from meshcost.strategies import PipelineParallel
from meshcost.symbols import ALPHABET

SOME = settings(
    max_examples=max(settings().max_examples // 4, 10), suppress_health_check=[HealthCheck.too_slow]
)
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
}
EVERYTHING = {
    "model": LLAMA,
    "parallel": {
        "data": {"strategy": "fsdp", "size": 4, "replicate": 2},
        "tensor": {"size": 2, "sequence_parallel": True},
        "pipeline": {"size": 2},
        "context": {"size": 2},
    },
    "batch": {"sequence": 64, "global_batch": 8},
}


@pytest.mark.parametrize("law", testing.LAWS.values(), ids=testing.LAWS)
@SOME
@given(job=testing.jobs())
def test_law(law, job: Job):
    if law is not testing.messages_match or testing.calls_in_all(job) <= testing.LARGEST_WALK:
        law(job)


@pytest.mark.parametrize("law", testing.LAWS.values(), ids=testing.LAWS)
def test_law_on_a_layout_with_everything(law):
    law(Job(**EVERYTHING))


@SOME
@given(testing.models())
def test_models_are_legal(model):
    assert read_model(model).layers > 0


def test_jobs_use_every_axis_strategy_schedule_and_method():
    seen: Counter = Counter()

    @settings(
        max_examples=300,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(testing.jobs())
    def look(job: Job):
        parallel = job.parallel
        seen.update({f"{axis} {strategy.size > 1}" for axis, strategy in parallel.strategies.items()})
        seen.update([parallel.data.strategy, parallel.pipeline.schedule, job.recompute])
        seen.update([parallel.context.method] if parallel.context.size > 1 else [])
        seen["hsdp"] += parallel.data.replicate > 1
        seen["uneven"] += parallel.pipeline.layers_per_stage is not None
        seen["apart"] += job.setting.experts_apart
        seen["expert_tensor"] += job.setting.expert_tensor not in (1, job.mesh.size("tensor"))
        seen["lora"] += job.lora is not None
        seen["freeze"] += bool(job.freeze)

    look()
    wanted = [f"{axis} True" for axis in ("tensor", "context", "data", "pipeline", "expert")]
    wanted += [
        "ddp",
        "zero1",
        "zero2",
        "zero3",
        "fsdp",
        "hsdp",
        "ring",
        "all_gather",
        "ulysses",
        "full",
        "selective",
    ]
    wanted += [
        "gpipe",
        "1f1b",
        "interleaved_1f1b",
        "zb_h1",
        "zb_h2",
        "interleaved_zb",
        "zbv",
        "dualpipev",
        "dualpipe",
    ]
    wanted += ["uneven", "apart", "lora", "freeze"]
    assert [name for name in wanted if seen[name] < 3] == []


@pytest.mark.parametrize("law", testing.LAWS.values(), ids=testing.LAWS)
def test_law_where_a_switch_adds_and_copies(law):
    """What a group sends is not what it receives: the switch has a part in both."""
    switched = dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "nvls")
    law(Job(**EVERYTHING, algorithms=switched))
    law(Job(**EVERYTHING, algorithms={"all_reduce": "sharp"}))


def test_a_job_is_held_to_every_law():
    assert set(testing.check(Job(**EVERYTHING))) == set(testing.LAWS)


def test_a_strategy_is_checked_on_small_jobs():
    assert set(testing.check(PipelineParallel(size=2, schedule="zbv"))) == set(testing.LAWS)
    with pytest.raises(JobError, match="no small job allows this PipelineParallel"):
        testing.check(PipelineParallel(size=3, schedule="dualpipe"))


# -- the order of axes in the rank number ----------------------------------------------------------------------------


@SOME
@given(testing.jobs(), st.data())
def test_the_order_of_axes_changes_nothing_but_what_crosses_nodes(job: Job, data):
    order = tuple(data.draw(st.permutations(job.parallel.axes)))
    if job.setting.experts_apart and job.setting.expert_tensor > 1:
        order = ("tensor", *(axis for axis in order if axis != "tensor"))
    turned = Job(
        **{name: getattr(job, name) for name in Job.model_fields}
        | {"parallel": job.parallel.model_copy(update={"order": order})}
    )
    assert Counter(map(wire, analyze(job))) == Counter(map(wire, analyze(turned)))


def wire(event):
    price = event.priced
    return (
        event.strategy,
        event.op,
        event.axes,
        event.stages,
        event.why,
        event.calls,
        price.sent_bytes,
        price.received_bytes,
    )


@SOME
@given(testing.jobs(cluster={"gpus_per_node": 64}))
def test_on_one_node_nothing_crosses_nodes(job: Job):
    assert [event for event in analyze(job) if event.priced.inter_node_bytes] == []


@SOME
@given(testing.jobs(cluster={"gpus_per_node": 1}))
def test_with_a_rank_to_a_node_everything_crosses_nodes(job: Job):
    assert [event for event in analyze(job) if event.priced.intra_node_bytes] == []


# -- a law that nobody has seen fail is not a test -------------------------------------------------------------------


def broken(**changes) -> Ledger:
    """The ledger of everything, with one field of one send or reduce-scatter spoilt."""
    ledger = analyze(Job(**EVERYTHING))
    op = changes.pop("op")
    spoilt = next(event for event in ledger if event.op == op and event.strategy != "scalars")
    price = replace(spoilt.priced, **changes.pop("price", {}))
    events = [replace(event, price=price, **changes) if event is spoilt else event for event in ledger]
    return replace(ledger, events=tuple(events))


@pytest.mark.parametrize(
    ("law", "changes", "sentence"),
    [
        (
            testing.bytes_are_conserved,
            {"op": "reduce_scatter", "price": {"received_bytes": 1}},
            "receives 1 B",
        ),
        (
            testing.bytes_are_conserved,
            {"op": "reduce_scatter", "price": {"intra_node_bytes": 1}},
            "by link class",
        ),
        (testing.bytes_are_conserved, {"op": "send", "count": Integer(3)}, "messages of"),
        (
            testing.ranks_make_up_the_cluster,
            {"op": "reduce_scatter", "price": {"cluster_inter_node_bytes": 1}},
            "between nodes; stated are",
        ),
        (
            testing.formulas_are_the_numbers,
            {"op": "send", "price": {"forms": Forms(lambda: (ALPHABET["m"], ALPHABET["m"]))}},
            "its formula m gives",
        ),
        (testing.calls_match_counts, {"op": "all_gather", "count": 2 * ALPHABET["m"]}, "its events count"),
        (testing.messages_match, {"op": "send", "stages": (1,)}, "waits for ever"),
        (testing.messages_match, {"op": "recv", "payload": Integer(2)}, "but received as"),
    ],
)
def test_a_law_finds_what_is_broken(law, changes, sentence):
    with pytest.raises(AssertionError, match=sentence):
        law(broken(**changes))


def test_without_hypothesis_generators_say_what_to_install(monkeypatch):
    from meshcost.errors import MeshcostError
    from meshcost.testing.hypotheses import strategies

    monkeypatch.setitem(__import__("sys").modules, "hypothesis.strategies", None)
    strategies.cache_clear()
    with pytest.raises(MeshcostError, match="pip install hypothesis"):
        testing.jobs()
    strategies.cache_clear()
