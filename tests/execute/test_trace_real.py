"""The trace on real processes over Gloo calls what the fake group calls."""

from collections.abc import Callable

import pytest

from meshcost.errors import ExecutionError, JobError
from meshcost.job import Job

torch = pytest.importorskip("torch")

from meshcost.execute.trace import ranks_of, trace  # noqa: E402 - needs torch

DENSE = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}
EXPERTS = {**DENSE, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
LAYOUTS = {
    "ddp": (DENSE, {"data": 2}),
    "zero1": (DENSE, {"data": {"strategy": "zero1", "size": 2}}),
    "hsdp": (DENSE, {"data": {"strategy": "fsdp", "size": 4, "replicate": 2}}),
    "fsdp x tensor": (
        DENSE,
        {"data": {"strategy": "fsdp", "size": 2}, "tensor": {"size": 2, "sequence_parallel": True}},
    ),
    "fsdp x pipeline": (DENSE, {"data": {"strategy": "fsdp", "size": 2}, "pipeline": {"size": 2}}),
    "fsdp x experts": (EXPERTS, {"data": {"strategy": "fsdp", "size": 4}, "expert": 2}),
    "context": (DENSE, {"context": {"size": 2, "method": "all_gather"}}),
}


def job(model, parallel, **more):
    return Job(
        model=model,
        parallel=parallel,
        batch={"sequence": 32, "micro_batch": 1, "global_batch": 4},
        precision={"weights": "fp32"},
        **more,
    )


@pytest.mark.gloo
@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("name", LAYOUTS)
def test_real_ranks_call_what_fake_ones_call(name: str, equal_calls: Callable[..., None]):
    asked = job(*LAYOUTS[name])
    real = trace(asked, "all", steps=2, real=True, timeout_seconds=240)
    fake = trace(asked, "one per stage", steps=2)
    for rank, recording in fake.items():
        equal_calls(recording, real[rank], name)


@pytest.mark.gloo
@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_rank_that_takes_too_long_is_ended():
    with pytest.raises(ExecutionError, match=r"after 0\.1 s"):
        trace(job(DENSE, {"data": 2}), real=True, timeout_seconds=0.1)


def test_ranks_are_chosen_by_stage():
    asked = job(DENSE, {"data": 2, "tensor": 2, "pipeline": 2})
    assert ranks_of(asked, "one per stage") == (0, 4)
    assert ranks_of(asked, "all") == tuple(range(8))
    assert ranks_of(asked, [3]) == (3,)


@pytest.mark.parametrize(
    ("parallel", "why"),
    [
        ({"data": {"strategy": "zero2", "size": 2}}, "no zero2"),
        ({"pipeline": {"size": 2, "schedule": "zb_h1"}}, "no zb_h1"),
        ({"context": {"size": 2, "method": "ulysses"}}, "no ulysses"),
    ],
)
def test_what_torch_cannot_do_is_refused(parallel, why):
    with pytest.raises(JobError, match=why):
        trace(job(DENSE, parallel))
