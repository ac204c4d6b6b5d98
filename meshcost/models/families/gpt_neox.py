"""GPT-NeoX and Pythia: attention and MLP side by side, each with a norm of its own."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model, Region
from meshcost.models.parts import (
    MULTIHEAD,
    SEQUENTIAL,
    column,
    embedding,
    head,
    mlp,
    norm,
    norms,
    row,
    uniform,
)
from meshcost.models.sizes import multihead
from meshcost.symbols import a, d_head, f, h

SIDE_BY_SIDE = (Region("attention+mlp", (h, h), h),)


def gpt_neox(fields: Fields) -> Model:
    """GPT-NeoX: ``use_parallel_residual`` false puts the MLP after attention, with the same weights."""
    dims = multihead(fields, ("hidden_size",), ("num_attention_heads",))
    dims[f] = fields.size("intermediate_size")
    bias = fields.flag("attention_bias", True)
    weights = (
        *norms("input_layernorm", "post_attention_layernorm", bias=True),
        *column("attention.query_key_value", 3 * a * d_head, h, bias),
        *row("attention.dense", h, a * d_head, bias),
        *mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
    )
    regions = SIDE_BY_SIDE if fields.flag("use_parallel_residual", True) else SEQUENTIAL
    layers = fields.layers("num_hidden_layers")
    kinds, pattern = uniform("gpt_neox.layers", Kind("dense", weights, regions), layers)
    tied = fields.flag("tie_word_embeddings", False)
    before = (embedding("gpt_neox.embed_in"),)
    after = (*norm("gpt_neox.final_layer_norm", bias=True, unit="head"), *head(tied))
    return Model("", "", dims, before, kinds, pattern, after, tied, MULTIHEAD)
