"""Predicted equals traced, call by call and in order: FullyShardedDataParallel, the older FSDP."""

from collections.abc import Callable
from typing import Any

import pytest

from meshcost.errors import JobError
from meshcost.execute.recording import SETUP
from meshcost.job import Job, analyze

torch = pytest.importorskip("torch")

from meshcost.execute.trace import trace  # noqa: E402 - needs torch

#: Sizes that no number of ranks and no alignment divides.
MODEL = {
    "model_type": "llama",
    "hidden_size": 66,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "intermediate_size": 97,
    "vocab_size": 127,
    "tie_word_embeddings": False,
}
EMBEDDING = "model.embed_tokens.weight"
LAST = {"set_requires_gradient_sync": "last"}
ORIGINAL = {"use_orig_params": True}
KEPT = {"reshard_after_forward": False}
BF16_FP32 = {"weights": "bf16", "reduce": "fp32"}


def flat(micro_batches: int = 1, data: dict[str, Any] | None = None, **more: Any) -> Job:
    fields = {
        field: more.pop(field) for field in ("freeze", "lora", "recompute", "parallel") if field in more
    }
    precision, model = more.pop("precision", {"weights": "fp32"}), {**MODEL, **more.pop("model", {})}
    data = {"strategy": "fsdp", "size": 6, **(data or {})}
    return Job(
        **{
            "model": model,
            "framework": "torch",
            "parallel": {"data": data},
            "torch": {"wrapper": "FullyShardedDataParallel", **more},
            "batch": {"sequence": 8, "micro_batch": 1, "global_batch": micro_batches * data["size"]},
            "precision": precision,
            **fields,
        }
    )


DDP = {"strategy": "ddp"}
CASES: dict[str, Job] = {
    "full shard": flat(),
    "original parameters, aligned": flat(2, **ORIGINAL),
    "no_sync": flat(3, **LAST),
    "no_sync, aligned": flat(2, **LAST, **ORIGINAL),
    "shard grad op": flat(2, KEPT),
    "shard grad op, no_sync": flat(3, KEPT, **LAST),
    "shard grad op by name": flat(2, sharding_strategy="SHARD_GRAD_OP", **ORIGINAL),
    "no shard": flat(2, DDP),
    "no shard, every micro-batch": flat(2, DDP, set_requires_gradient_sync="every", **ORIGINAL),
    "prefetched after a backward": flat(2, backward_prefetch="BACKWARD_POST"),
    "not prefetched": flat(backward_prefetch=None, limit_all_gathers=False),
    "prefetched forward": flat(forward_prefetch=True),
    "prefetched forward, several micro-batches": flat(3, forward_prefetch=True, **ORIGINAL),
    "prefetched both ways, no_sync": flat(
        3, forward_prefetch=True, backward_prefetch="BACKWARD_POST", **LAST
    ),
    "hybrid shard": flat(2, {"replicate": 2}),
    "hybrid shard, kept": flat(3, {"replicate": 2, **KEPT}, **LAST, **ORIGINAL),
    "hybrid shard of the second kind by name": flat(
        data={"replicate": 3}, sharding_strategy="_HYBRID_SHARD_ZERO2"
    ),
    "mixed precision": flat(2, precision=BF16_FP32, **ORIGINAL),
    "reduced as computed": flat(
        precision={"weights": "bf16"}, keep_low_precision_grads=True, optimizer="SGD"
    ),
    "reduced in less": flat(precision={"weights": "fp32", "reduce": "bf16"}),
    "mixed precision, no shard": flat(2, DDP, precision=BF16_FP32),
    "frozen beginning": flat(2, freeze=(EMBEDDING, "model.layers.0.*", "model.layers.1.*"), **ORIGINAL),
    "frozen blocks": flat(2, freeze=("model.layers.*",)),
    "frozen beginning of its own": flat(
        2, freeze=(EMBEDDING, "model.layers.0.*"), units=["embedding", "blocks"]
    ),
    "adapters": flat(2, lora={"rank": 3, "targets": ["q_proj", "v_proj"]}, **ORIGINAL),
    "recomputed": flat(2, recompute="full"),
    "recomputed, prefetched forward": flat(2, recompute="full", forward_prefetch=True, **ORIGINAL),
    "tied": flat(model={"tie_word_embeddings": True}, **ORIGINAL),
    "units at the ends": flat(2, units=["embedding", "blocks", "head"]),
    "units at the ends, prefetched": flat(2, units=["embedding", "blocks", "head"], forward_prefetch=True),
    "the head a unit, prefetched after a backward": flat(
        units=["blocks", "head"], backward_prefetch="BACKWARD_POST"
    ),
    "no units": flat(2, units=[]),
    "units inside blocks": flat(2, units=["model.layers.*.mlp", "blocks"]),
    "only parts of blocks": flat(units=["model.layers.*.mlp"], **ORIGINAL),
    "experts": flat(model={"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}),
}


def at_step(case: Job, step: int | None) -> Job:
    asked = case.torch.model_copy(update={"step": step})
    return Job(**{**{field: getattr(case, field) for field in case.model_fields_set}, "torch": asked})


@pytest.mark.parametrize("name", CASES)
def test_a_prediction_is_what_torch_calls(name: str, equal_calls: Callable[..., None]):
    (recording,) = trace(CASES[name], [1], steps=2).values()
    for number, step in enumerate((0, None)):
        predicted = list(analyze(at_step(CASES[name], step)).calls(1))
        observed = [call for call in recording if call.step == number and call.phase != SETUP]
        assert predicted
        equal_calls(predicted, observed, f"{name}, step {number}", rank=1)


#: What is wrong with a job, and how the sentence begins that says so.
REFUSED: dict[str, dict[str, Any]] = {
    "torch.sharding_strategy: NO_SHARD is not fsdp": {"sharding_strategy": "NO_SHARD"},
    "torch.sharding_strategy: FULL_SHARD is not ddp": {"data": DDP, "sharding_strategy": "FULL_SHARD"},
    "torch.sharding_strategy: parallel.data": {"data": KEPT, "sharding_strategy": "FULL_SHARD"},
    "parallel.data.size: FullyShardedDataParallel of one rank": {"data": {"replicate": 6}},
    "parallel.data.gather": {"data": {"gather": "once"}},
    "parallel.data.strategy: FullyShardedDataParallel has no zero1": {"data": {"strategy": "zero1"}},
    "torch.units: norm + head is several modules": {"units": ["blocks", ["norm", "head"]]},
    "torch.units: norm and head each": {"units": ["blocks", "norm", "head"]},
    "torch.units: embedding shares its weight": {
        "units": ["embedding", "blocks"],
        "model": {"tie_word_embeddings": True},
    },
    "torch.use_orig_params: root holds weights that train": {"freeze": (EMBEDDING,)},
    "torch.use_orig_params: dense holds weights": {"lora": {"rank": 3, "targets": ["q_proj"]}},
    "torch.keep_low_precision_grads: AdamW": {
        "keep_low_precision_grads": True,
        "precision": {"weights": "bf16"},
    },
}


@pytest.mark.parametrize("begins", REFUSED)
def test_what_torch_refuses_is_said_in_a_sentence(begins: str):
    with pytest.raises(JobError) as refused:
        flat(**REFUSED[begins])
    assert [problem for problem in refused.value.problems if problem.startswith(begins)]


def test_axes_beside_it_are_refused():
    data = {"strategy": "fsdp", "size": 2}
    for axis in ("tensor", "pipeline", "context", "expert"):
        with pytest.raises(JobError, match=rf"parallel\.{axis}: beside FullyShardedDataParallel"):
            Job(
                model={**MODEL, "num_hidden_layers": 4},
                framework="torch",
                parallel={"data": data, axis: 2},
                torch={"wrapper": "FullyShardedDataParallel"},
                batch={"sequence": 8, "global_batch": 8},
            )
