"""Predicted equals traced, call by call and in order: fully_shard, DistributedDataParallel, ZeroRedundancyOptimizer."""

from collections.abc import Callable
from typing import Any

import pytest

from meshcost.execute.recording import SETUP
from meshcost.job import Job, analyze

torch = pytest.importorskip("torch")

from meshcost.execute.trace import trace  # noqa: E402 - needs torch

MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}
EXPERTS = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
TIED = {"tie_word_embeddings": True}
SEPARATE = ["embedding", "blocks", ["norm", "head"]]
EMBEDDING = "model.embed_tokens.weight"


def job(parallel: dict[str, Any], torch: dict[str, Any], micro_batches: int = 1, **more: Any) -> Job:
    data = parallel["data"]
    return Job(
        **{
            "model": {**MODEL, **more.pop("model", {})},
            "framework": "torch",
            "parallel": parallel,
            "torch": torch,
            "batch": {"sequence": 16, "micro_batch": 2, "global_batch": 2 * micro_batches * data["size"]},
            "precision": {"weights": "fp32"},
            **more,
        }
    )


def fsdp(size: int = 4, **more: Any) -> dict[str, Any]:
    return {"data": {"strategy": "fsdp", "size": size, **more}}


def ddp(**more: Any) -> dict[str, Any]:
    return {"data": {"strategy": "ddp", "size": 4}, **more}


TIED = {**MODEL, "tie_word_embeddings": True}
SMALL = {"bucket_cap_mb": 0.02}
STATIC = {"static_graph": True, "set_requires_gradient_sync": "every"}

CASES: dict[str, Job] = {
    "units told which comes next": job(fsdp(), {"units": SEPARATE, "prefetch": "next_unit"}),
    "the last unit kept": job(
        fsdp(), {"units": SEPARATE, "prefetch": "next_unit", "keep_last_unit": True}, 2
    ),
    "units inside blocks": job(fsdp(), {"units": ["model.layers.*.mlp", "blocks"]}, 2),
    "units inside blocks told which comes next": job(
        fsdp(),
        {"units": ["model.layers.*.mlp", "model.layers.*.self_attn", "blocks"], "prefetch": "next_unit"},
        2,
    ),
    "parts of blocks told which comes next": job(
        fsdp(), {"units": ["model.layers.*.mlp"], "prefetch": "next_unit"}
    ),
    "norm and head apart": job(fsdp(), {"units": ["embedding", "blocks", "norm", "head"]}, 2),
    "tied ends in one unit": job(fsdp(), {"units": [["embedding", "head"], "blocks"]}, model=TIED),
    "tied ends in one unit, the norm alone": job(
        fsdp(), {"units": ["blocks", "norm", ["embedding", "head"]]}, 2, model=TIED
    ),
    "only parts of blocks": job(fsdp(), {"units": ["model.layers.*.mlp"]}),
    "the decoder as a unit": job(fsdp(), {"units": ["blocks", "model"]}),
    "no units": job(fsdp(), {"units": []}),
    "fused experts padded": job(fsdp(8), {}, model=EXPERTS),
    "frozen beginning": job(fsdp(), {"units": SEPARATE}, freeze=(EMBEDDING, "model.layers.0.*")),
    "frozen beginning, one root": job(fsdp(), {}, freeze=(EMBEDDING, "model.layers.0.*")),
    "frozen blocks": job(fsdp(), {}, freeze=("model.layers.*",)),
    "adapters": job(fsdp(), {}, lora={"rank": 4, "targets": ["q_proj", "v_proj"]}),
    "reduced and let go at the last": job(
        fsdp(), {"set_reshard_after_backward": "last", "set_requires_gradient_sync": "last"}, 3
    ),
    "gathered once": job(
        fsdp(),
        {
            "set_reshard_after_backward": "last",
            "reshard_after_forward": False,
            "set_is_last_backward": True,
        },
        3,
    ),
    "replicas and parts": job(fsdp(8, replicate=2), {"reshard_after_forward": 2}, 2),
    "tied, in one unit": job(fsdp(), {"units": ["blocks", ["embedding", "norm", "head"]]}, 2, model=TIED),
    "frozen weights are in no bucket": job(ddp(), SMALL, 2, freeze=(EMBEDDING,)),
    "buckets after every micro-batch": job(ddp(), {**SMALL, "set_requires_gradient_sync": "every"}, 2),
    "buckets that change within a step": job(ddp(), {**SMALL, **STATIC}, 3),
    "buckets that change in the second step": job(ddp(), {**SMALL, **STATIC}, 2),
    "unused weights looked for": job(ddp(), {**SMALL, "find_unused_parameters": True}),
    "buckets of norms of heads": job(ddp(), SMALL, model={"model_type": "qwen3", "head_dim": 16}),
    "buckets of biases": job(ddp(), SMALL, model={"model_type": "qwen2"}),
    "buckets of experts": job(ddp(), SMALL, model=EXPERTS),
    "buckets of split weights": job(ddp(tensor=2), SMALL, 2),
    "a bucket and a split sequence": job(ddp(tensor={"size": 2, "sequence_parallel": True}), {}, 2),
    "owners hand out weights": job({"data": {"strategy": "zero1", "size": 4}}, {}, 2),
}


def at_step(case: Job, step: int) -> Job:
    asked = case.torch.model_copy(update={"step": step})
    return Job(**{**{field: getattr(case, field) for field in case.model_fields_set}, "torch": asked})


@pytest.mark.parametrize("name", CASES)
def test_a_prediction_is_what_torch_calls(name: str, equal_calls: Callable[..., None]):
    (recording,) = trace(CASES[name], [0], steps=2).values()
    for step in range(2):
        predicted = list(analyze(at_step(CASES[name], step)).calls(0))
        observed = [call for call in recording if call.step == step and call.phase != SETUP]
        equal_calls(predicted, observed, f"{name}, step {step}")
