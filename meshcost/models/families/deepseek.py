"""DeepSeek V2 and V3: latent attention, dense blocks first, then routed ones with shared experts."""

from dataclasses import dataclass, replace

from sympy import Expr

from meshcost.models.fields import Fields
from meshcost.models.model import Attention, Kind, Model, Region, Weight
from meshcost.models.parts import (
    ROUTED,
    SEQUENTIAL,
    SHARED,
    Dims,
    Weights,
    column,
    decoder,
    experts,
    gated_mlp,
    mixed,
    norms,
    router,
    row,
    whole,
)
from meshcost.models.sizes import routing
from meshcost.symbols import V, a, d_nope, d_rope, d_v, f, f_s, h, r_kv, r_q

LATENT = Attention(a, a, a * (d_nope + d_rope), a * (d_nope + d_rope), a * d_v, a * d_v)


@dataclass(frozen=True)
class Defaults:
    """What the two versions take for granted differently."""

    dense_first: int
    shared: int
    routed: int
    top_k: int | None
    width: int


V2 = Defaults(dense_first=0, shared=2, routed=64, top_k=None, width=1407)
V3 = Defaults(dense_first=3, shared=1, routed=256, top_k=8, width=2048)


def _sizes(fields: Fields, defaults: Defaults) -> Dims:
    dims = {h: fields.size("hidden_size"), a: fields.size("num_attention_heads")}
    dims[V] = fields.size("vocab_size")
    dims[f] = fields.size("intermediate_size")
    fields.maybe("num_key_value_heads")  # Latent attention gives every head its own key and value.
    if not fields.null("q_lora_rank"):
        dims[r_q] = fields.size("q_lora_rank", default=1536)
    dims[r_kv] = fields.size("kv_lora_rank", default=512)
    dims[d_nope] = fields.size("qk_nope_head_dim", default=128)
    dims[d_rope] = fields.size("qk_rope_head_dim", default=64)
    dims[d_v] = fields.size("v_head_dim", default=128)
    count = fields.size("n_routed_experts", "num_experts", "num_local_experts", default=defaults.routed)
    top = fields.size("num_experts_per_tok", default=defaults.top_k)
    width = fields.size("moe_intermediate_size", default=defaults.width)
    dims |= routing(
        fields,
        (fields.called("n_routed_experts", "num_experts", "num_local_experts"), count),
        ("num_experts_per_tok", top),
        width,
    )
    if shared := fields.size("n_shared_experts", default=defaults.shared, least=0):
        dims[f_s] = shared * width
    return dims


def _latent(name: str, rank: Expr, bias: bool) -> Weights:
    return tuple(replace(weight, latent=True) for weight in whole(name, rank, h, bias))


def _attention(dims: Dims, bias: bool) -> Weights:
    queries = column("self_attn.q_proj", a * (d_nope + d_rope), h)
    if r_q in dims:
        queries = (
            *_latent("self_attn.q_a_proj", r_q, bias),
            Weight("self_attn.q_a_layernorm.weight", (r_q,), "norm"),
            *column("self_attn.q_b_proj", a * (d_nope + d_rope), r_q),
        )
    return (
        *queries,
        *_latent("self_attn.kv_a_proj_with_mqa", r_kv + d_rope, bias),
        Weight("self_attn.kv_a_layernorm.weight", (r_kv,), "norm"),
        *column("self_attn.kv_b_proj", a * (d_nope + d_v), r_kv),
        *row("self_attn.o_proj", h, a * d_v, bias),
    )


def _deepseek(fields: Fields, defaults: Defaults, mlp_bias: bool) -> Model:
    dims = _sizes(fields, defaults)
    attention = _attention(dims, fields.flag("attention_bias", False))
    after = norms("input_layernorm", "post_attention_layernorm")
    shared = gated_mlp("mlp.shared_experts", f_s, mlp_bias) if f_s in dims else ()
    # The latents are what enters the column-parallel projections.
    enters = (Region("attention", (r_q if r_q in dims else h, r_kv + d_rope), h),)
    dense = Kind("dense", (*attention, *gated_mlp(bias=mlp_bias), *after), enters + SEQUENTIAL[1:])
    regions = enters + ROUTED[1:] + (SHARED if f_s in dims else ())
    moe = Kind("moe", (*attention, *experts(), *router(), *shared, *after), regions)
    first = fields.size("first_k_dense_replace", default=defaults.dense_first, least=0)
    if fields.size("moe_layer_freq", default=1) != 1:
        fields.refuse(
            "moe_layer_freq: only 1 is supported; code in use does not agree on what another means."
        )
    layers = fields.layers("num_hidden_layers")
    blocks = mixed("model.layers", dense, moe, layers, lambda layer: layer >= first)
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", False), LATENT)


def deepseek_v2(fields: Fields) -> Model:
    """DeepSeek V2: dense and shared MLPs may have biases."""
    return _deepseek(fields, V2, fields.flag("mlp_bias", False))


def deepseek_v3(fields: Fields) -> Model:
    """DeepSeek V3 and R1, without the layers that predict further tokens (MTP)."""
    return _deepseek(fields, V3, mlp_bias=False)
