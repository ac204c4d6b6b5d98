"""Models built in PyTorch have the weights that meshcost describes."""

from collections.abc import Callable

import pytest

from meshcost.errors import ModelError
from meshcost.job import Job, analyze
from meshcost.models import catalogue, freeze, read_model

torch = pytest.importorskip("torch")

from meshcost.execute.torch_models import build  # noqa: E402 - needs torch
from meshcost.execute.trace import trace  # noqa: E402 - needs torch
from meshcost.execute.trace_families import BUILT_FAMILIES, SPLIT_FAMILIES  # noqa: E402 - needs torch

NAMES = [name for name in catalogue() if read_model(name).family in BUILT_FAMILIES]
SMALL = {
    "deepseek_v3": {
        "q_lora_rank": 32, "kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
        "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    },
    "cohere": {"use_qk_norm": True},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16},
    "gpt2": {},
    "gpt_neox": {},
    "gptj": {},
    "llama": {"tie_word_embeddings": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 32},
    "phi": {"qk_layernorm": True},
    "phi3": {},
    "qwen2_moe": {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "qwen3": {"head_dim": 24},
}  # fmt: skip


def small(family: str):
    fields = {
        "model_type": family,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 128,
    }
    return read_model({**fields, **SMALL[family]})


def test_there_are_models_to_build():
    assert len(NAMES) > 20


@pytest.mark.parametrize("name", NAMES)
def test_weights_have_the_names_shapes_and_order_of_the_description(name: str):
    model = read_model(name)
    with torch.device("meta"):
        built = build(model)
    found = [(name, tuple(weight.shape)) for name, weight in built.named_parameters()]
    assert found == [(w.name, tuple(map(model.number, w.shape))) for w in model.weights()]


@pytest.mark.parametrize("family", SMALL)
def test_every_weight_learns(family: str):
    model = small(family)
    built = build(model)
    with torch.no_grad():
        for weight in built.parameters():
            weight.normal_(std=0.1)
    logits = built(torch.randint(128, (2, 8)))
    assert logits.shape == (2, 8, 128)
    logits.square().sum().backward()
    assert [name for name, weight in built.named_parameters() if weight.grad is None] == []


def test_a_later_token_does_not_change_an_earlier_one():
    built = build(small("llama"))
    tokens = torch.randint(128, (1, 8))
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % 128
    with torch.no_grad():
        for weight in built.parameters():
            weight.normal_(std=0.1)
        first, second = built(tokens), built(other)
    torch.testing.assert_close(first[:, :-1], second[:, :-1])
    assert not torch.equal(first[:, -1], second[:, -1])


def test_stages_hold_the_weights_of_the_whole_between_them():
    model = small("mixtral")
    with torch.device("meta"):
        parts = [build(model, layers=range(1), last=False), build(model, layers=range(1, 2), first=False)]
        whole = build(model)
    names = [name for part in parts for name, _ in part.named_parameters()]
    assert names == [name for name, _ in whole.named_parameters()]


def test_frozen_weights_need_no_gradient():
    with torch.device("meta"):
        built = build(freeze(small("llama"), ["*.norm.weight", "*embed*"]))
    assert [name for name, weight in built.named_parameters() if not weight.requires_grad] == [
        "model.embed_tokens.weight", "model.norm.weight",
    ]  # fmt: skip


def test_another_family_is_refused_with_the_ones_that_are_known():
    assert set(BUILT_FAMILIES) == set(SMALL) | {"deepseek_v2", "mistral", "qwen2", "qwen3_moe", "smollm3"}
    with pytest.raises(ModelError, match=r"bloom.*llama"):
        build(read_model("bloom-560m"))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("family", sorted(set(BUILT_FAMILIES) - set(SPLIT_FAMILIES)))
def test_a_family_without_a_tensor_plan_is_traced_as_predicted(
    family: str, strategy: str, equal_calls: Callable[..., None]
):
    asked = Job(
        model=small(family),
        framework="torch",
        parallel={"data": {"strategy": strategy, "size": 4}},
        torch={"bucket_cap_mb": 0.05, "step": 2},
        batch={"sequence": 16, "global_batch": 4},
        precision={"weights": "fp32"},
        scalars={"gradient_norm": False},
    )
    (recording,) = trace(asked, [0], steps=3).values()
    equal_calls(analyze(asked).calls(0), recording.at_step(2), family)
