"""Falcon: one key and value head (7B), groups (40B, 180B) or as many as queries (RW); one or two norms."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model, Region
from meshcost.models.parts import (
    GROUPED,
    PARALLEL,
    SEQUENTIAL,
    Dims,
    Weights,
    embedding,
    fused,
    head,
    mlp,
    norm,
    norms,
    row,
    uniform,
)
from meshcost.models.sizes import multihead
from meshcost.symbols import a, a_kv, d_head, f, h

TWO_NORMS = (Region("attention+mlp", (h, h), h),)


def _sizes(fields: Fields, grouped: bool) -> Dims:
    dims = multihead(fields, ("hidden_size", "n_embed"), ("num_attention_heads",))
    dims[f] = fields.size("ffn_hidden_size", default=4 * dims[h])
    groups = fields.size("num_kv_heads", default=dims[a])
    one = fields.flag("multi_query", True)
    # Older checkpoints say num_kv_heads 71 beside multi_query: only the newer architecture reads it.
    dims[a_kv] = groups if grouped else 1 if one else dims[a]
    if grouped:
        fields.multiple(("num_attention_heads", dims[a]), ("num_kv_heads", groups))
    return dims


def _norms(fields: Fields, grouped: bool) -> tuple[Weights, tuple[Region, ...]]:
    count = fields.size("num_ln_in_parallel_attn", default=2 if grouped else 1)
    if not fields.flag("parallel_attn", True):
        return norms("post_attention_layernorm", "input_layernorm", bias=True), SEQUENTIAL
    if count == 2:
        return norms("ln_attn", "ln_mlp", bias=True), TWO_NORMS
    return norms("input_layernorm", bias=True), PARALLEL


def falcon(fields: Fields) -> Model:
    """Falcon: ``new_decoder_architecture`` has groups of queries and two norms; tied."""
    grouped = fields.flag("new_decoder_architecture", False)
    dims, bias = _sizes(fields, grouped), fields.flag("bias", False)
    after, regions = _norms(fields, grouped)
    weights = (
        *fused("self_attention.query_key_value", dims, bias),
        *row("self_attention.dense", h, a * d_head, bias),
        *mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias),
        *after,
    )
    layers = fields.layers("num_hidden_layers")
    kinds, pattern = uniform("transformer.h", Kind("dense", weights, regions), layers)
    tied = fields.flag("tie_word_embeddings", True)
    before = (embedding("transformer.word_embeddings"),)
    last = (*norm("transformer.ln_f", bias=True, unit="head"), *head(tied))
    return Model("", "", dims, before, kinds, pattern, last, tied, GROUPED)
