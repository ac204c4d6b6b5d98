"""A job's own calls on real ranks: every group of its mesh, every kind of call, and the whole step against the bill."""

from dataclasses import replace
from io import StringIO
from itertools import groupby
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("torch")

from meshcost import Job, analyze
from meshcost.errors import ExecutionError
from meshcost.execute.crew import Crew
from meshcost.execute.results import complete
from meshcost.execute.step import Step
from meshcost.execute.verify import Settings, verify_step
from meshcost.measurement import FRAME_BYTES
from meshcost.report.verify import Verdict

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


@pytest.fixture(scope="module")
def executed():
    """The rows of a job with the bill's own algorithms."""
    return list(verify_step(step_of(SHARDED, schedules=True), FAST))


def test_a_row_says_on_which_axes_and_in_which_group_it_was_measured(executed):
    """Groups of one kind follow each other, and a run that goes on finds each of them again."""
    step = step_of(SHARDED, schedules=True)
    calls = [row for row in executed if row.op != "step"]
    groups = {}
    for row in calls:
        groups.setdefault(row.on, set()).add(row.group)
        assert row.rank in row.group
    assert {on: groups[on] for on in ("data", "tensor")} == {
        axis: set(step.ledger.mesh.groups((axis,))) for axis in ("data", "tensor")
    }
    kinds = [(row.key.kind, row.on) for row in calls]
    assert len([kind for kind, _ in groupby(kinds)]) == len(set(kinds))
    assert len(complete(calls)) == len(step.kinds())
    assert complete(calls[1:]).keys() == complete(calls).keys() - {calls[0].key}
    lines = page(executed).splitlines()
    assert [line.split()[1:4] for line in lines if line.startswith("all_gather")].count(
        ["data,", "2", "groups"]
    ) > 1


def test_the_bills_own_algorithms_send_exactly_the_bill(executed):
    rows = executed
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
    text = page(rows, scaled=True)
    assert "the bill, scaled" in text
    assert "reduce-scatter" not in text  # nobody makes one
    assert "144 B a message: 96 by its sender, 48 by its receiver" in text


def page(rows, **options):
    drawn = StringIO()
    Console(file=drawn, width=160).print(Verdict(rows, **options))
    return drawn.getvalue()


def test_a_page_says_what_gloo_does_only_where_it_is_done(executed):
    """The same rows as if the library had made the calls; the bill is called scaled only where it is."""
    text = page([replace(row, algorithm="gloo") for row in executed])
    assert "Gloo runs a reduce-scatter as an all-reduce" in text
    assert "scaled" not in text


@pytest.mark.parametrize("schedules", [False, True])
@pytest.mark.parametrize(
    "parallel",
    [
        SHARDED["parallel"],
        STAGED["parallel"],
        {"pipeline": 4, "tensor": 2},
        {"pipeline": {"size": 2, "schedule": "interleaved_1f1b", "chunks": 2}, "data": 2},
    ],
)
def test_the_kinds_of_call_are_known_without_asking_every_rank(parallel, schedules):
    job = {
        "model": "gpt2",
        "parallel": {**parallel, "pad_vocabulary": 128},
        "batch": {"sequence": 256, "global_batch": 8},
    }
    step = step_of(job, schedules=schedules)
    shapes = [(x.op, x.algorithm, x.ranks, x.payload_bytes) for x in step.shapes()]
    assert len(set(shapes)) == len(shapes)
    assert set(shapes) == {(x.op, x.algorithm, x.ranks, x.payload_bytes) for x in step.kinds()}


@pytest.mark.parametrize("tool", ["nccl-tests", "param"])
def test_the_calls_of_a_job_of_any_size_are_exported(tool, repository, run):
    done = run("verify", repository / "examples" / "llama-3.1-405b.yaml", "--export", tool)
    assert done.code == 0
    assert "mpirun -np 16384 " in done.out


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


def test_messages_that_overtake_each_other_find_their_way():
    with Crew(2, timeout=FAST.timeout) as crew:
        for schedule in ("zbv", "dualpipe"):
            step = step_of({**STAGED, "parallel": {"pipeline": {"size": 2, "schedule": schedule}}})
            for rank, row in crew.play(step).items():
                if crew.counter == "tcp_info":
                    assert row["sent"] == pytest.approx(step.predicted(rank).sent_bytes, abs=FRAME_BYTES)
    # Nor is one left as a zombie, which nobody has waited for.
    assert [process for process in crew.processes if Path(f"/proc/{process}").exists()] == []


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
