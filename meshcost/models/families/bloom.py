"""BLOOM: biases everywhere, a norm after the word embedding, positions without weights."""

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
    *norm("input_layernorm", bias=True),
    *column("self_attention.query_key_value", 3 * a * d_head, h, bias=True),
    *row("self_attention.dense", h, a * d_head, bias=True),
    *norm("post_attention_layernorm", bias=True),
    *mlp("mlp.dense_h_to_4h", "mlp.dense_4h_to_h", bias=True),
)


def bloom(fields: Fields) -> Model:
    """BLOOM: the MLP is four times as wide as the model; tied."""
    dims = multihead(fields, ("hidden_size", "n_embed"), ("n_head", "num_attention_heads"))
    dims[f] = 4 * dims[h]
    layers = fields.layers("n_layer", "num_hidden_layers")
    kinds, pattern = uniform("transformer.h", Kind("dense", BLOCK, SEQUENTIAL), layers)
    tied = fields.flag("tie_word_embeddings", True)
    words = embedding("transformer.word_embeddings")
    before = (words, *norm("transformer.word_embeddings_layernorm", bias=True, unit="embedding"))
    after = (*norm("transformer.ln_f", bias=True, unit="head"), *head(tied))
    return Model("", "", dims, before, kinds, pattern, after, tied, MULTIHEAD)
