"""DBRX: fused queries, keys and values; experts in every block, stored with expert and width in one dim."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model, Weight
from meshcost.models.parts import (
    GROUPED,
    ROUTED,
    Dims,
    embedding,
    fused,
    head,
    norm,
    router,
    row,
    uniform,
)
from meshcost.models.sizes import multihead, routing
from meshcost.symbols import E, a, a_kv, d_head, f_e, h

# One dim holds all experts, each with its own width: tensor splits every expert's share of it.
EXPERTS = tuple(Weight(f"ffn.experts.mlp.{x}", (E * f_e, h), "expert", shard=0) for x in ("w1", "v1", "w2"))


def _sizes(fields: Fields) -> Dims:
    dims = multihead(fields, ("d_model", "hidden_size"), ("n_heads", "num_attention_heads"))
    dims[a_kv] = fields.inner("attn_config").size("kv_n_heads", default=1)
    fields.multiple(("n_heads", dims[a]), ("attn_config.kv_n_heads", dims[a_kv]))
    ffn = fields.inner("ffn_config")
    count = ffn.size("moe_num_experts", default=4)
    top = ffn.size("moe_top_k", default=1)
    width = ffn.size("ffn_hidden_size", default=3584)
    ffn.maybe("hidden_size")  # A copy of d_model, which decides.
    dims |= routing(fields, ("ffn_config.moe_num_experts", count), ("ffn_config.moe_top_k", top), width)
    return dims


def dbrx(fields: Fields) -> Model:
    """DBRX: norms without bias, attention inside its own pair of norms; never tied."""
    dims = _sizes(fields)
    fields.unsupported("tie_word_embeddings", True, "DBRX has an output projection of its own")
    attention = (
        *fused("norm_attn_norm.attn.Wqkv", dims),
        *row("norm_attn_norm.attn.out_proj", h, a * d_head),
    )
    around = (*norm("norm_attn_norm.norm_1"), *attention, *norm("norm_attn_norm.norm_2"))
    kind = Kind("moe", (*around, *router("ffn.router.layer"), *EXPERTS), ROUTED)
    kinds, pattern = uniform("transformer.blocks", kind, fields.layers("n_layers", "num_hidden_layers"))
    before = (embedding("transformer.wte"),)
    after = (*norm("transformer.norm_f", unit="head"), *head(tied=False))
    return Model("", "", dims, before, kinds, pattern, after, tied=False, attention=GROUPED)
