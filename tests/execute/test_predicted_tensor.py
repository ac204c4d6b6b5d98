"""Predicted equals traced, call by call and in order: tensor parallelism, the norm of gradients and the optimizer."""

from collections.abc import Callable
from typing import Any

import pytest

from meshcost.job import Job, analyze

torch = pytest.importorskip("torch")

from meshcost.execute.trace import trace  # noqa: E402 - needs torch

MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
    "tie_word_embeddings": False,
}
BIASES = {"attention_bias": True, "mlp_bias": True}
PREPARED = {"prepare_module_input": True}


def job(
    parallel: dict[str, Any], micro_batches: int = 1, model: dict[str, Any] | None = None, **more: Any
) -> Job:
    data = parallel.get("data", 1)
    ranks = data if isinstance(data, int) else data["size"]
    return Job(
        **{
            "model": {**MODEL, **(model or {})},
            "framework": "torch",
            "parallel": parallel,
            "batch": {"sequence": 16, "micro_batch": 2, "global_batch": 2 * micro_batches * ranks},
            "precision": {"weights": "fp32"},
            **more,
        }
    )


def split(flags: str = "", size: int = 2) -> dict[str, Any]:
    """Tensor parallelism with some of: s(equence), v(ocabulary), l(oss)."""
    names = {"sequence_parallel": "s", "vocabulary_parallel": "v", "loss_parallel": "l"}
    return {"tensor": {"size": size, **{name: flag in flags for name, flag in names.items()}}}


def frozen(*patterns: str) -> dict[str, Any]:
    return {"freeze": tuple(f"model.{pattern}" for pattern in patterns)}


CASES: dict[str, Job] = {
    "plain": job(split()),
    "on four ranks": job(split(size=4)),
    "one module prepares the input": job(split(), torch=PREPARED),
    "sequence": job(split("s")),
    "vocabulary": job(split("v")),
    "vocabulary and loss": job(split("vl")),
    "everything": job(split("svl")),
    "everything, two micro-batches": job(split("svl"), micro_batches=2),
    "sequence and loss split the vocabulary too": job(split("sl")),
    "tied, plain": job(split(), model={"tie_word_embeddings": True}),
    "tied, split twice": job(split("vl"), model={"tie_word_embeddings": True}),
    "biases": job(split(), model=BIASES),
    "biases and sequence": job(split("s"), model=BIASES),
    "biases of Qwen": job(split("svl"), model={"model_type": "qwen2"}),
    "recompute, plain": job(split(), recompute="full"),
    "recompute, prepared": job(split(), torch=PREPARED, recompute="full"),
    "recompute, everything": job(split("svl"), recompute="full"),
    "bf16": job(split("s"), precision={"weights": "bf16"}),
    "bf16 that is stored in fp32": job(
        split("s"), precision={"weights": "bf16"}, torch={"weights_dtype": "fp32"}
    ),
    "no clipping": job(split("s"), scalars={"gradient_norm": False}),
    "Adam": job(split("s"), torch={"optimizer": "Adam"}),
    "Adam, for each": job(split("s"), torch={"optimizer": "Adam", "foreach": True}),
    "AdamW, fused": job(split("s"), torch={"fused": True}),
    "SGD": job(split("s"), torch={"optimizer": "SGD", "clip_foreach": True}),
    "SGD, one by one": job(split("s"), torch={"optimizer": "SGD", "foreach": False, "clip_foreach": False}),
    "frozen embedding": job(split("svl"), **frozen("embed_tokens.*")),
    "frozen embedding and first norm": job(
        split("vl"), **frozen("embed_tokens.*", "layers.*.input_layernorm.*")
    ),
    "prepared, frozen embedding and first norm": job(
        split(), torch=PREPARED, **frozen("embed_tokens.*", "layers.*.input_layernorm.*")
    ),
    "frozen first block": job(split("vl"), **frozen("embed_tokens.*", "layers.0.*")),
    "frozen, but for the norms that torch makes anew": job(split("svl"), **frozen("*")),
    "only the last norm and the head are trained": job(split("vl"), **frozen("embed_tokens.*", "layers.*")),
}


#: Cases of which others tell most: not between two edits.
SLOW = frozenset(
    (
        "on four ranks",
        "sequence",
        "vocabulary",
        "sequence and loss split the vocabulary too",
        "tied, plain",
        "biases",
        "biases of Qwen",
        "recompute, plain",
        "bf16 that is stored in fp32",
        "Adam",
        "Adam, for each",
        "SGD, one by one",
        "frozen embedding",
        "prepared, frozen embedding and first norm",
    )
)
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]


@pytest.mark.parametrize("name", NAMES)
def test_predicted_is_traced(name: str, equal_calls: Callable[..., None]):
    asked = CASES[name]
    ledger = analyze(asked)
    for rank, recording in trace(asked, steps=1).items():
        predicted, seen = list(ledger.calls(rank)), recording.steady()
        equal_calls(predicted, seen, name, rank)
