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

#: Gemma 3 projects first and normalises heads then.
USE_ORDER = (
    "input_layernorm", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj", "post_attention_layernorm",
    "pre_feedforward_layernorm", "mlp", "post_feedforward_layernorm",
)  # fmt: skip


def _gemma(
    fields: Fields,
    dims: Dims,
    norm_names: tuple[str, ...],
    extra: Weights = (),
    use_order: tuple[str, ...] = (),
) -> Model:
    dims[f] = fields.size("intermediate_size")
    bias = fields.flag("attention_bias", False)
    weights = (*separate(dims, bias, bias), *extra, *gated_mlp(), *norms(*norm_names))
    kind = Kind("dense", weights, SEQUENTIAL, use_order)
    blocks = uniform("model.layers", kind, fields.layers("num_hidden_layers"))
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", True))


def gemma(fields: Fields) -> Model:
    """Gemma 1: two norms in a block."""
    return _gemma(fields, grouped(fields, kv_heads=16, head_dim=256), BEFORE)


def gemma2(fields: Fields) -> Model:
    """Gemma 2: four norms in a block."""
    return _gemma(fields, grouped(fields, kv_heads=4, head_dim=256), AROUND)


def gemma3(fields: Fields) -> Model:
    """Gemma 3, the text tower: norms of heads; published configurations leave out heads and vocabulary."""
    dims = grouped(fields, kv_heads=4, head_dim=256, heads=8, vocabulary=262_208)
    return _gemma(fields, dims, AROUND, head_norms(), USE_ORDER)
