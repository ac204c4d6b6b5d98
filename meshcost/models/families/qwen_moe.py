"""Qwen 2 MoE and Qwen 3 MoE: dense and routed blocks by ``decoder_sparse_step`` and ``mlp_only_layers``."""

from sympy import Integer

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model
from meshcost.models.parts import (
    ROUTED,
    SEQUENTIAL,
    SHARED,
    Dims,
    Weights,
    decoder,
    experts,
    gated_mlp,
    head_norms,
    mixed,
    norms,
    router,
    separate,
    whole,
)
from meshcost.models.sizes import grouped, routing
from meshcost.symbols import E, f, f_s, h

ONE = Integer(1)
NORMS = norms("input_layernorm", "post_attention_layernorm")

#: Qwen 2 lets the shared expert work before tokens are routed, and weighs it at the end.
SHARED_FIRST = (
    "input_layernorm", "self_attn", "post_attention_layernorm", "shared_expert", "gate", "experts", "shared_expert_gate",
)  # fmt: skip


def _qwen(fields: Fields, dims: Dims, attention: Weights, moe: Kind) -> Model:
    dims[f] = fields.size("intermediate_size")
    layers, step = fields.layers("num_hidden_layers"), fields.size("decoder_sparse_step", default=1)
    dense_only = fields.numbers("mlp_only_layers", layers) or frozenset()
    dense = Kind("dense", (*attention, *gated_mlp(), *NORMS), SEQUENTIAL)

    def is_moe(layer: int) -> bool:
        return E in dims and layer not in dense_only and (layer + 1) % step == 0

    blocks = mixed("model.layers", dense, moe, layers, is_moe)
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", False))


def qwen2_moe(fields: Fields) -> Model:
    """Qwen 2 MoE: a shared expert of its own width, scaled by a gate of its own."""
    dims = grouped(fields, kv_heads=16)
    count = fields.size("num_experts", default=60, least=0)
    top = fields.size("num_experts_per_tok", default=4)
    width = fields.size("moe_intermediate_size", default=1408)
    if count:
        dims |= routing(
            fields,
            (fields.called("num_experts", "num_local_experts"), count),
            ("num_experts_per_tok", top),
            width,
        )
        dims[f_s] = fields.size("shared_expert_intermediate_size", default=5632)
    attention = separate(dims, bias=fields.flag("qkv_bias", True))
    shared = (*gated_mlp("mlp.shared_expert", f_s), *whole("mlp.shared_expert_gate", ONE, h))
    moe = Kind("moe", (*attention, *router(), *experts(), *shared, *NORMS), ROUTED + SHARED, SHARED_FIRST)
    return _qwen(fields, dims, attention, moe)


def qwen3_moe(fields: Fields) -> Model:
    """Qwen 3 MoE: no shared expert; heads are normalised one by one."""
    dims, bias = grouped(fields, kv_heads=4), fields.flag("attention_bias", False)
    count = fields.size("num_experts", "num_local_experts", default=128, least=0)
    top = fields.size("num_experts_per_tok", default=8)
    width = fields.size("moe_intermediate_size", default=768)
    if count:
        dims |= routing(
            fields,
            (fields.called("num_experts", "num_local_experts"), count),
            ("num_experts_per_tok", top),
            width,
        )
    attention = (*separate(dims, bias, bias), *head_norms())
    moe = Kind("moe", (*attention, *experts(), *router(), *NORMS), ROUTED)
    return _qwen(fields, dims, attention, moe)
