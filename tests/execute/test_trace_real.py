"""The trace on real processes over Gloo: each rank makes the predicted calls, and its sockets count the predicted bytes."""

from typing import Any

import pytest

from meshcost.errors import ExecutionError
from meshcost.execute import trace_check
from meshcost.execute.recording import RecordedCall, Recording
from meshcost.execute.trace_check import TraceCheck
from meshcost.execute.trace_rules import ranks_of
from meshcost.execute.trace_wire import TCP, wire_of
from meshcost.job import Job, analyze
from meshcost.strategies.torch_options import TorchOptions
from meshcost.unroll import Call

torch = pytest.importorskip("torch")

from meshcost.execute.trace import trace  # noqa: E402 - needs torch

DENSE = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 512,
    "tie_word_embeddings": False,
}
EXPERTS = {**DENSE, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
SEQUENCE = {"tensor": {"size": 2, "sequence_parallel": True}}
NO_NORM: dict[str, Any] = {"scalars": {"gradient_norm": False}}
FOUR: dict[str, Any] = {"batch": {"sequence": 128, "micro_batch": 1, "global_batch": 4}}


def fsdp(size: int, **more: Any) -> dict[str, Any]:
    return {"data": {"strategy": "fsdp", "size": size, **more}}


#: What is laid out how, the steps until the steady state, and what else the job says.
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any], int, dict[str, Any]]] = {
    "ddp": (DENSE, {"data": 2}, 3, {}),
    "zero1": (
        DENSE,
        {"data": {"strategy": "zero1", "size": 3}},
        3,
        {"precision": {"weights": "bf16"}, **NO_NORM},
    ),
    "fsdp": (DENSE, fsdp(3), 1, {}),
    "hsdp": (DENSE, fsdp(4, replicate=2), 1, {}),
    "fsdp in mixed precision": (DENSE, fsdp(2), 1, {"precision": {"weights": "bf16", "reduce": "fp32"}}),
    "fsdp with accumulation": (DENSE, fsdp(2), 1, FOUR),
    "tensor": (DENSE, {"tensor": 2}, 1, NO_NORM),
    "tensor, sequence parallel": (DENSE, SEQUENCE, 1, {}),
    "fsdp x tensor": (DENSE, {**fsdp(2), **SEQUENCE}, 1, {}),
    "pipeline": (DENSE, {"pipeline": {"size": 2, "schedule": "1f1b"}}, 2, FOUR),
    "fsdp x pipeline": (DENSE, {**fsdp(2), "pipeline": 2}, 2, {**FOUR, **NO_NORM}),
    "fsdp x experts": (EXPERTS, {**fsdp(4), "expert": 2}, 1, {}),
    "fsdp around a ring": (DENSE, {**fsdp(1), "context": {"size": 3, "method": "ring"}}, 1, NO_NORM),
}


def job(model: dict[str, Any], parallel: dict[str, Any], **more: Any) -> Job:
    data = parallel.get("data", 1)
    ranks = data if isinstance(data, int) else data["size"]
    return Job(
        **{
            "model": model,
            "framework": "torch",
            "parallel": parallel,
            "batch": {"sequence": 96, "micro_batch": 1, "global_batch": ranks},
            "precision": {"weights": "fp32"},
            **more,
        }
    )


def check(asked: Job, steps: int, monkeypatch: pytest.MonkeyPatch) -> TraceCheck:
    monkeypatch.setattr(trace_check, "load", lambda path, framework: asked)
    return TraceCheck("job.yaml", steps=steps, real=True)


@pytest.mark.gloo
@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("name", LAYOUTS)
def test_real_ranks_make_the_predicted_calls_and_move_the_predicted_bytes(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    model, parallel, steps, more = LAYOUTS[name]
    asked = check(job(model, parallel, **more), steps, monkeypatch)
    found = list(asked.run())
    assert [x.why(name) for x in found if not x.equal] == []
    assert {x.rank for x in found} == set(range(asked.job.world_size))
    assert asked.named(steps - 1) == f"{steps - 1} (steady state)"
    for x in found:
        assert x.wire is not None
        if x.wire.measured is not None:
            assert abs(x.wire.measured.sent - x.wire.predicted.sent_bytes) <= 144
            assert abs(x.wire.measured.received - x.wire.predicted.received_bytes) <= 144
    whole = sum(x.wire.predicted.sent_payload for x in found if x.step == steps - 1 and x.wire)
    assert whole > 10**6


@pytest.mark.gloo
@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_rank_that_takes_too_long_is_ended():
    with pytest.raises(ExecutionError, match=r"after 0\.1 s"):
        trace(job(DENSE, {"data": 2}), real=True, timeout_seconds=0.1)


def test_bytes_that_no_call_explains_are_a_difference(monkeypatch: pytest.MonkeyPatch):
    asked = check(job(DENSE, {"data": 2}), 1, monkeypatch)
    calls = list(analyze(asked.job.model_copy(update={"torch": TorchOptions(step=0)})).calls(0))
    moved = wire_of(0, calls, (), None).predicted
    for extra, verdict in ((144, "equal"), (145, "OTHER BYTES"), (-145, "OTHER BYTES")):
        counted = [[moved.sent_bytes + extra, moved.received_bytes]]
        (step,) = asked.hold(Recording(0, 2, as_recorded(calls), {TCP: counted}))
        assert step.verdict == verdict
    assert "counted 145 B less" in step.why("ddp")
    document = asked.as_dict([step])
    assert document["equal"] is False
    assert document["ranks"][0]["bytes"][0]["measured_sent_bytes"] == moved.sent_bytes - 145


def as_recorded(calls):
    return tuple(
        RecordedCall(call.op, call.ranks, call.in_bytes, call.out_bytes, call.dtype, call.phase)
        for call in calls
    )


def test_a_broadcast_starts_where_the_recording_says():
    call = Call("broadcast", (4, 5, 6), 8, 8, "fp32", "optimizer", "zero1", "", "step")
    seen = RecordedCall("broadcast", (4, 5, 6), 8, 8, "fp32", "optimizer", root=5)
    sent = [wire_of(5, [call], seen, None).predicted.sent_payload for seen in ((), (seen,))]
    assert sent == [0, 16]


def test_ranks_are_chosen_by_stage():
    asked = job(DENSE, {"data": 2, "tensor": 2, "pipeline": 2}, **FOUR)
    assert ranks_of(asked, "one per stage") == (0, 4)
    assert ranks_of(asked, "all") == tuple(range(8))
    assert ranks_of(asked, [3]) == (3,)
