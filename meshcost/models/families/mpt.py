"""MPT: fused queries, keys and values, no biases, positions without weights (ALiBi)."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model
from meshcost.models.parts import (
    MULTIHEAD,
    SEQUENTIAL,
    column,
    embedding,
    head,
    mlp,
    norm,
    row,
    uniform,
)
from meshcost.models.sizes import multihead
from meshcost.symbols import a, d_head, f, h

BLOCK = (
    *norm("norm_1"),
    *column("attn.Wqkv", 3 * a * d_head, h),
    *row("attn.out_proj", h, a * d_head),
    *norm("norm_2"),
    *mlp("ffn.up_proj", "ffn.down_proj"),
)
KNOWN = "transformers builds MPT without it"


def _refuse(fields: Fields, heads: int) -> None:
    """Refuse what MPT's own code can do and transformers leaves out: its weights would be counted wrong."""
    attention = fields.inner("attn_config")
    if fields.size("expansion_ratio", default=4) != 4:
        fields.refuse("expansion_ratio: only 4 is supported: transformers builds MPT with nothing else.")
    fields.unsupported("no_bias", False, KNOWN)
    if fields.flag("learned_pos_emb", True) and not attention.flag("alibi", True):
        fields.refuse("learned_pos_emb without attn_config.alibi is not supported: " + KNOWN + ".")
    attention.unsupported("qk_ln", True, KNOWN)
    attention.unsupported("attn_type", "multiquery_attention", KNOWN)
    if attention.size("kv_n_heads", default=heads) != heads:
        fields.refuse("attn_config.kv_n_heads: only n_heads is supported: " + KNOWN + ".")


def mpt(fields: Fields) -> Model:
    """MPT: tied."""
    dims = multihead(fields, ("d_model", "hidden_size"), ("n_heads", "num_attention_heads"))
    dims[f] = 4 * dims[h]
    _refuse(fields, dims[a])
    layers = fields.layers("n_layers", "num_hidden_layers")
    kinds, pattern = uniform("transformer.blocks", Kind("dense", BLOCK, SEQUENTIAL), layers)
    tied = fields.flag("tie_word_embeddings", True)
    after = (*norm("transformer.norm_f", unit="head"), *head(tied))
    return Model("", "", dims, (embedding("transformer.wte"),), kinds, pattern, after, tied, MULTIHEAD)
