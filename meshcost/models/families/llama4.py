"""Llama 4, the text tower: routed blocks with a shared expert, every ``interleave_moe_layer_step``-th one."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model, Weight
from meshcost.models.parts import (
    ROUTED,
    SEQUENTIAL,
    SHARED,
    Dims,
    decoder,
    gated_mlp,
    mixed,
    norms,
    router,
    separate,
)
from meshcost.models.sizes import grouped, routing
from meshcost.symbols import E, f, f_e, f_s, h

EXPERTS = (
    Weight("feed_forward.experts.gate_up_proj", (E, h, 2 * f_e), "expert", shard=2),
    Weight("feed_forward.experts.down_proj", (E, f_e, h), "expert", shard=1),
)


def _sizes(fields: Fields) -> Dims:
    head_dim = None if fields.null("head_dim") else 128
    dims = grouped(fields, kv_heads=8, head_dim=head_dim)
    count = fields.size("num_local_experts", default=16)
    top = fields.size("num_experts_per_tok", default=1)
    width = fields.size("intermediate_size")
    dims |= routing(fields, ("num_local_experts", count), ("num_experts_per_tok", top), width)
    dims[f] = fields.size("intermediate_size_mlp", default=16384)
    dims[f_s] = width  # The shared expert is as wide as a routed one.
    return dims


def llama4(fields: Fields) -> Model:
    """Llama 4: dense blocks have a width of their own; query and key norms have no weights."""
    dims, bias = _sizes(fields), fields.flag("attention_bias", False)
    attention = separate(dims, bias, bias)
    after = norms("input_layernorm", "post_attention_layernorm")
    shared = gated_mlp("feed_forward.shared_expert", f_s)
    dense = Kind("dense", (*attention, *gated_mlp("feed_forward"), *after), SEQUENTIAL)
    routed = (*EXPERTS, *router("feed_forward.router"), *shared)
    moe = Kind("moe", (*attention, *routed, *after), ROUTED + SHARED)
    layers = fields.layers("num_hidden_layers")
    step = fields.size("interleave_moe_layer_step", default=1)
    chosen = fields.numbers("moe_layers", layers)

    def is_moe(layer: int) -> bool:
        return (layer + 1) % step == 0 if chosen is None else layer in chosen

    blocks = mixed("model.layers", dense, moe, layers, is_moe)
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", False))
