"""Predicted equals traced, call by call and in order: attention in a ring, experts, and tensor parallelism with the rest."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshcost.execute.recording import Recording
from meshcost.execute.recording_truth import read_truth
from meshcost.job import Job, analyze

torch = pytest.importorskip("torch")

from meshcost.execute.trace import trace  # noqa: E402 - needs torch

DENSE = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}
MIXTRAL = {**DENSE, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
LATENT = {
    **DENSE,
    "model_type": "deepseek_v2",
    "num_key_value_heads": 8,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
MIXED = {"weights": "bf16", "reduce": "fp32"}
TENSOR = {"tensor": {"size": 2, "sequence_parallel": True}}
STAGES = {"pipeline": {"size": 2, "schedule": "1f1b"}}
FROZEN = ("model.embed_tokens.*", "model.layers.0.*")

#: So small that the gradients of norms, which tensor parallelism leaves as partial sums, fall into several.
BUCKETS = {"bucket_cap_mb": 0.02}


def job(
    model: dict[str, Any], parallel: dict[str, Any], micro_batches: int = 1, batch: int = 2, **more: Any
) -> Job:
    data = parallel.get("data", 1)
    ranks = data if isinstance(data, int) else data["size"]
    return Job(
        **{
            "model": model,
            "framework": "torch",
            "parallel": parallel,
            "batch": {"sequence": 16, "micro_batch": batch, "global_batch": batch * micro_batches * ranks},
            "precision": {"weights": "fp32"},
            **more,
        }
    )


def fsdp(size: int, **more: Any) -> dict[str, Any]:
    return {"data": {"strategy": "fsdp", "size": size, **more}}


def ring(size: int, method: str = "ring") -> dict[str, Any]:
    return {"context": {"size": size, "method": method}}


RINGS = {
    "ring": job(DENSE, {**fsdp(2), **ring(4)}),
    "ring in bf16": job(DENSE, {**fsdp(2), **ring(4)}, precision=MIXED),
    "gathered": job(DENSE, {**fsdp(2), **ring(4, "all_gather")}, precision=MIXED),
    "gathered by option": job(DENSE, {**fsdp(2), **ring(2)}, torch={"rotate_method": "allgather"}),
    "not balanced": job(DENSE, {**fsdp(2), **ring(2)}, torch={"load_balance": False}),
    "recomputed": job(DENSE, {**fsdp(2), **ring(2)}, recompute="full"),
    "frozen first block": job(DENSE, {**fsdp(2), **ring(2)}, freeze=FROZEN),
    "latent attention": job(LATENT, {**fsdp(2), **ring(2)}),
    "replicas around a ring": job(DENSE, {"data": 2, **ring(2)}, micro_batches=2, torch=BUCKETS),
    "with tensor": job(DENSE, {**fsdp(2), **ring(2), **TENSOR}),
    "with stages": job(DENSE, {**fsdp(2), **ring(2), **STAGES}, micro_batches=2),
}
EXPERTS = {
    "experts": job(MIXTRAL, {**fsdp(4), "expert": 2}),
    "experts on all ranks": job(MIXTRAL, {**fsdp(4), "expert": 4}),
    "experts in bf16": job(MIXTRAL, {**fsdp(4), "expert": 2}, precision=MIXED),
    "experts, counts known": job(MIXTRAL, {**fsdp(4), "expert": 2}, torch={"exchange_counts": False}),
    "experts that do not divide the tokens": job(
        {**MIXTRAL, "num_experts_per_tok": 3}, {**fsdp(4), "expert": 2}, batch=1
    ),
    "experts recomputed": job(MIXTRAL, {**fsdp(4), "expert": 2}, recompute="full"),
    "experts beside shared ones, recomputed": job(LATENT, {**fsdp(4), "expert": 2}, recompute="full"),
    "experts that tokens reach inside their module, recomputed": job(
        MIXTRAL,
        {**fsdp(4), "expert": 2},
        recompute="full",
        torch={"exchange_inside": True, "prefetch": "next_unit"},
    ),
    "experts and replicas": job(MIXTRAL, {**fsdp(8, replicate=2), "expert": 2}),
    "experts and plain replicas": job(MIXTRAL, {"data": 4, "expert": 2}),
    "experts on context ranks": job(MIXTRAL, {**fsdp(2), **ring(2), "expert": 2}),
    "experts on stages": job(MIXTRAL, {**fsdp(4), "expert": 2, **STAGES}, micro_batches=2),
    "frozen experts": job(MIXTRAL, {**fsdp(4), "expert": 2}, freeze=("model.layers.*.mlp.experts.*",)),
    "frozen block with experts": job(MIXTRAL, {**fsdp(4), "expert": 2}, freeze=FROZEN),
}
TOGETHER = {
    "shards": job(DENSE, {**fsdp(2), **TENSOR}, precision=MIXED),
    "shards on one rank": job(DENSE, {**fsdp(1), **TENSOR}),
    "shards and replicas": job(DENSE, {**fsdp(4, replicate=2), **TENSOR}),
    "shards, gradients at the last": job(
        DENSE,
        {**fsdp(2), **TENSOR},
        micro_batches=2,
        precision=MIXED,
        torch={"set_requires_gradient_sync": "last"},
    ),
    "shards of ends": job(
        DENSE, {**fsdp(2), **TENSOR}, torch={"units": ["embedding", "blocks", ["norm", "head"]]}
    ),
    "shards without a plan for ends": job(
        DENSE, {**fsdp(2), "tensor": {"size": 2, "vocabulary_parallel": False}}, recompute="full"
    ),
    "shards of parts of blocks, recomputed": job(
        DENSE,
        {**fsdp(2), **TENSOR},
        recompute="full",
        torch={"units": ["*.self_attn", "*.mlp", "blocks"], "prefetch": "next_unit"},
    ),
    "replicas": job(DENSE, {"data": 2, **TENSOR}, micro_batches=2, torch=BUCKETS),
    "stages of replicas": job(DENSE, {"data": 2, **STAGES, **TENSOR}, micro_batches=2, torch=BUCKETS),
    "stages of one rank each that zero1 has nothing to spread in": job(
        DENSE, {"data": {"strategy": "zero1", "size": 1}, **STAGES, **TENSOR}, micro_batches=2
    ),
    "stages": job(DENSE, {**STAGES, **TENSOR}, micro_batches=2),
    "stages of shards": job(DENSE, {**fsdp(2), **STAGES, **TENSOR}, micro_batches=2, precision=MIXED),
}
CASES = {**RINGS, **EXPERTS, **TOGETHER}


def steps(asked: Job) -> int:
    """Steps until one is like the next: stages vote in the first, DistributedDataParallel makes its buckets anew."""
    if asked.parallel.data.strategy == "ddp" and asked.parallel.data.size > 1:
        return 3
    return 2 if asked.parallel.pipeline.size > 1 else 1


#: Cases of which others tell most: not between two edits.
SLOW = frozenset(
    (
        "ring",
        "gathered by option",
        "not balanced",
        "frozen first block",
        "experts",
        "experts in bf16",
        "experts on context ranks",
        "experts on stages",
        "frozen block with experts",
        "experts and replicas",
        "shards and replicas",
        "shards of ends",
        "stages",
        "with stages",
        "shards on one rank",
    )
)
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_predicted_is_traced(name: str, equal_calls: Callable[..., None]):
    asked = CASES[name]
    ledger = analyze(asked)
    for rank, recording in trace(asked, steps=steps(asked)).items():
        predicted, seen = list(ledger.calls(rank)), recording.steady()
        equal_calls(predicted, seen, name, rank)


# -- what others recorded on real processes, of attention and of the exchange of tokens alone --------------------------

FILE = json.loads((Path(__file__).parent / "data" / "torch_2_13.json").read_text())
TOY = {**DENSE, "hidden_size": 256, "num_key_value_heads": 8, "intermediate_size": 688, "vocab_size": 1024}
ATTENTION = {**TOY, "num_hidden_layers": 1}
TOKENS = {
    **TOY,
    "model_type": "mixtral",
    "num_hidden_layers": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def recorded(name: str) -> dict[int, Recording]:
    entry, calls = FILE["recordings"][name], FILE["calls"]
    ranks = {rank: [calls[number] for number in numbers] for rank, numbers in entry["ranks"].items()}
    return read_truth({"name": name, "config": {"world": entry["world"]}, "ranks": ranks})


@pytest.mark.parametrize(
    ("name", "strategy", "model", "parallel", "batch", "dtype"),
    [
        ("cp4_allgather_lb_fp32", "context", ATTENTION, ring(4, "all_gather"), (512, 1), "fp32"),
        ("cp4_allgather_lb_bf16", "context", ATTENTION, ring(4, "all_gather"), (512, 1), "bf16"),
        ("cp4_alltoall_lb_fp32", "context", ATTENTION, ring(4), (512, 1), "fp32"),
        ("moe_ep4_fake", "expert", TOKENS, {"data": 4, "expert": 4}, (128, 2), "fp32"),
    ],
)
def test_predicted_is_recorded(
    name: str,
    strategy: str,
    model: dict[str, Any],
    parallel: dict[str, Any],
    batch: tuple[int, int],
    dtype: str,
    *,
    equal_calls: Callable[..., None],
):
    sequence, size = batch
    asked = job(model, parallel, batch=size, precision={"weights": dtype})
    fields = {name: getattr(asked, name) for name in asked.model_fields_set}
    batch_of_it = asked.batch.model_copy(update={"sequence": sequence})
    ledger = analyze(Job(**{**fields, "batch": batch_of_it}))
    for rank, recording in recorded(name).items():
        predicted = [call for call in ledger.calls(rank) if call.strategy == strategy]
        equal_calls(predicted, recording, name, rank)
