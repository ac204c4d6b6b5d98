"""Gemma 1, 2 and 3 (text): heads of 256, tied; from Gemma 2 on, norms after attention and MLP as well."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model
from meshcost.models.parts import (
    SEQUENTIAL,
    Dims,
    Weights,
    decoder,
    gated_mlp,
    head_norms,
    norms,
    separate,
    uniform,
)
from meshcost.models.sizes import grouped
from meshcost.symbols import f

BEFORE = ("input_layernorm", "post_attention_layernorm")
AROUND = (*BEFORE, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def _gemma(fields: Fields, dims: Dims, extra: Weights, norm_names: tuple[str, ...]) -> Model:
    dims[f] = fields.size("intermediate_size")
    bias = fields.flag("attention_bias", False)
    weights = (*separate(dims, bias, bias), *extra, *gated_mlp(), *norms(*norm_names))
    blocks = uniform("model.layers", Kind("dense", weights, SEQUENTIAL), fields.layers("num_hidden_layers"))
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", True))


def gemma(fields: Fields) -> Model:
    """Gemma 1: two norms in a block."""
    return _gemma(fields, grouped(fields, kv_heads=16, head_dim=256), (), BEFORE)


def gemma2(fields: Fields) -> Model:
    """Gemma 2: four norms in a block."""
    return _gemma(fields, grouped(fields, kv_heads=4, head_dim=256), (), AROUND)


def gemma3(fields: Fields) -> Model:
    """Gemma 3, the text tower: norms of heads; published configurations leave out heads and vocabulary."""
    dims = grouped(fields, kv_heads=4, head_dim=256, heads=8, vocabulary=262_208)
    return _gemma(fields, dims, head_norms(), AROUND)
