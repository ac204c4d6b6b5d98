"""Models to try layouts on: small ones of every shape that matters to communication, and a few real ones."""

from functools import cache
from typing import TYPE_CHECKING, Any

from meshcost.testing.hypotheses import strategies

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from meshcost.testing.hypotheses import Draw

Config = dict[str, Any]

#: Real models, one of each kind: grouped queries, one key head, latent attention, parallel blocks, experts, tied.
REAL = (
    "llama-3-8b",
    "gpt2",
    "falcon-7b",
    "command-r",
    "mixtral-8x7b",
    "deepseek-v2-lite",
    "olmo-2-1b",
    "qwen1.5-moe-a2.7b",
)

_VOCABULARIES = (96, 128, 1000, 50257)


@cache
def models() -> "SearchStrategy[Config | str]":
    """Generate models as a job file names them: inline fields of many families, or a name from the catalogue.

    >>> from meshcost.models import read_model
    >>> read_model({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 9}).layers
    1
    """
    st = strategies()
    small = st.one_of(*(st.composite(family)() for family in (_grouped, _gpt2, _falcon, _experts, _latent)))
    return st.one_of(small, small, small, small, st.sampled_from(REAL))


def _grouped(draw: "Draw[Any]") -> Config:
    """Sequential or parallel blocks with grouped queries: one key head, some, or as many as query heads."""
    st = strategies()
    heads = draw(st.sampled_from((4, 8, 16)))
    return {
        "model_type": draw(
            st.sampled_from(("llama", "qwen2", "qwen3", "gemma2", "cohere", "olmo2", "smollm3"))
        ),
        "hidden_size": heads * 8 * draw(st.sampled_from((1, 2, 3))),
        "num_hidden_layers": draw(st.integers(1, 8)),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([x for x in (1, 2, 4, 8, 16) if x <= heads])),
        "head_dim": draw(st.sampled_from((8, 16))),
        "intermediate_size": 16 * draw(st.integers(1, 20)),
        "vocab_size": draw(st.sampled_from(_VOCABULARIES)),
        "tie_word_embeddings": draw(st.booleans()),
    }


def _gpt2(draw: "Draw[Any]") -> Config:
    st = strategies()
    heads = draw(st.sampled_from((4, 8, 12)))
    return {
        "model_type": "gpt2",
        "n_embd": heads * 8 * draw(st.integers(1, 3)),
        "n_head": heads,
        "n_layer": draw(st.integers(1, 8)),
        "n_positions": draw(st.sampled_from((64, 1000))),
        "vocab_size": draw(st.sampled_from(_VOCABULARIES)),
        "tie_word_embeddings": draw(st.booleans()),
    }


def _falcon(draw: "Draw[Any]") -> Config:
    st = strategies()
    heads, new = draw(st.sampled_from((4, 8))), draw(st.booleans())
    return {
        "model_type": "falcon",
        "hidden_size": heads * 16,
        "num_attention_heads": heads,
        "num_hidden_layers": draw(st.integers(1, 6)),
        "new_decoder_architecture": new,
        "num_kv_heads": draw(st.sampled_from((2, 4))) if new else 1,
        "multi_query": True,
        "parallel_attn": draw(st.booleans()),
        "vocab_size": draw(st.sampled_from(_VOCABULARIES)),
    }


def _experts(draw: "Draw[Any]") -> Config:
    """Routed experts in every block or every second one, with and without shared experts."""
    st = strategies()
    family = draw(st.sampled_from(("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")))
    heads, count = draw(st.sampled_from((4, 8))), draw(st.sampled_from((4, 8, 12)))
    config = {
        "model_type": family,
        "hidden_size": heads * 16,
        "num_hidden_layers": draw(st.integers(1, 6)),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from((2, 4))),
        "intermediate_size": 16 * draw(st.integers(1, 10)),
        "num_experts_per_tok": draw(st.integers(1, 3)),
        "vocab_size": draw(st.sampled_from(_VOCABULARIES)),
    }
    if family.startswith("qwen"):
        config |= {
            "moe_intermediate_size": 16 * draw(st.integers(1, 4)),
            "decoder_sparse_step": draw(st.integers(1, 2)),
        }
    if family == "qwen2_moe":
        config["shared_expert_intermediate_size"] = 16 * draw(st.integers(1, 4))
    return {**config, ("num_local_experts" if family == "mixtral" else "num_experts"): count}


def _latent(draw: "Draw[Any]") -> Config:
    """Latent attention, dense blocks first, then routed and shared experts."""
    st = strategies()
    layers = draw(st.integers(1, 6))
    return {
        "model_type": "deepseek_v3",
        "hidden_size": 16 * draw(st.integers(2, 6)),
        "num_hidden_layers": layers,
        "num_attention_heads": draw(st.sampled_from((4, 8))),
        "intermediate_size": 16 * draw(st.integers(1, 8)),
        "moe_intermediate_size": 16 * draw(st.integers(1, 4)),
        "n_routed_experts": draw(st.sampled_from((4, 8))),
        "n_shared_experts": draw(st.integers(0, 2)),
        "num_experts_per_tok": draw(st.integers(1, 4)),
        "first_k_dense_replace": draw(st.integers(0, layers)),
        "q_lora_rank": draw(st.sampled_from((None, 24))),
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "vocab_size": draw(st.sampled_from(_VOCABULARIES)),
    }
