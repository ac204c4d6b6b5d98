"""A job's own calls on real ranks: every group of its mesh, every kind of call, and the whole step against the bill."""

import pytest

pytest.importorskip("torch")

from meshcost import Job, analyze
from meshcost.errors import ExecutionError
from meshcost.execute.step import Step
from meshcost.execute.verify import Settings, verify_step

pytestmark = [pytest.mark.gloo, pytest.mark.xdist_group("ranks")]
FAST = Settings(timeout=40, iterations=1)
CAP = 2**14

SHARDED = {
    "model": "qwen3-0.6b",
    "parallel": {"data": {"size": 2, "strategy": "fsdp"}, "tensor": {"size": 2, "sequence_parallel": True}},
    "batch": {"sequence": 256, "global_batch": 2},
}
STAGED = {
    "model": "qwen3-0.6b",
    "parallel": {"data": 2, "pipeline": 2, "context": {"size": 2, "method": "ring"}},
    "batch": {"sequence": 256, "global_batch": 8},
}


def step_of(job, **options):
    return Step(analyze(Job(**job)), CAP, **options)


def test_the_bills_own_algorithms_send_exactly_the_bill():
    rows = list(verify_step(step_of(SHARDED, schedules=True), FAST))
    assert all(row.passed for row in rows)
    steps = [row for row in rows if row.op == "step"]
    assert [row.rank for row in steps] == [0, 1, 2, 3]
    for row in steps:
        assert row.algorithm == "bill"
        assert row.predicted_sent_bytes - row.frame_bytes == row.billed_sent_bytes
        if row.counter == "tcp_info":
            assert row.measured_sent_bytes is not None
            assert abs(row.measured_sent_bytes - row.frame_bytes - row.billed_sent_bytes) <= 144


def test_pipeline_and_context_pass_their_messages_on():
    step = step_of(STAGED)
    rows = list(verify_step(step, FAST))
    assert all(row.passed for row in rows)
    groups = {case.members for case in step.kinds()}
    mesh = step.ledger.mesh
    assert set(mesh.groups(("data", "context"))) <= groups
    assert {row.op for row in rows} >= {"send_recv", "all_reduce", "step"}
    assert len([row for row in rows if row.op == "step"]) == mesh.world_size


def test_a_payload_is_scaled_to_the_cap_and_no_further():
    step = step_of(SHARDED)
    assert step.scaled("all_gather", 2, 10**9) == CAP
    assert step.scaled("all_gather", 3, 1000) == 996
    assert step.scaled("all_reduce", 2, 4) == 4
    assert step.scaled("all_gather", 8, 4) == 32
    whole = Step(step.ledger)
    assert [whole.billed(rank) for rank in range(4)] == [
        step.ledger.rank_totals(rank).sent_bytes for rank in range(4)
    ]


def test_the_calls_of_a_rank_can_be_written_shortly():
    step = step_of(SHARDED)
    cases, (distinct, order) = step.cases(0), step.script(0)
    assert [distinct[number] for number, _ in order] == cases
    assert len(distinct) < len(cases)


@pytest.mark.parametrize("schedule", ["zbv", "dualpipe"])
def test_messages_that_overtake_each_other_find_their_way(schedule):
    job = {**STAGED, "parallel": {"pipeline": {"size": 2, "schedule": schedule}}}
    rows = list(verify_step(step_of(job), FAST))
    assert all(row.passed for row in rows)
    assert [row.rank for row in rows if row.op == "step"] == [0, 1]


def test_a_job_that_is_too_large_says_what_to_reduce():
    job = {
        "model": "qwen3-0.6b",
        "parallel": {"data": {"size": 512, "strategy": "fsdp"}},
        "batch": {"sequence": 256, "global_batch": 512},
    }
    with pytest.raises(
        ExecutionError, match=r"512 ranks, .* can start 64 .* Reduce parallel.data.size \(now 512\), or run"
    ):
        step_of(job).check(free=10**12, cores=2)
    with pytest.raises(ExecutionError, match=r"can start 5 .* or --cap, or run"):
        step_of(job).check(free=10**9, cores=64)
