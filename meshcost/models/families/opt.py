"""OPT: learned positions (two rows more than positions), and a word embedding that may be narrower."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model, Weight
from meshcost.models.parts import (
    MULTIHEAD,
    SEQUENTIAL,
    Dims,
    Weights,
    column,
    embedding,
    head,
    mlp,
    norm,
    row,
    uniform,
)
from meshcost.models.sizes import multihead
from meshcost.symbols import a, d_head, e_w, f, h, s_max

NORMS_BEFORE = ("self_attn_layer_norm", "self_attn", "final_layer_norm", "fc1", "fc2")
NORMS_AFTER = ("self_attn", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm")


def _before(fields: Fields, dims: Dims, affine: bool) -> Weights:
    """Everything outside the blocks is registered before them, what follows them too."""
    positions = Weight("model.decoder.embed_positions.weight", (s_max + 2, h), "position", "embedding")
    projections: Weights = ()
    if dims[e_w] != dims[h]:
        projections = (
            Weight("model.decoder.project_out.weight", (e_w, h), "block", "head"),
            Weight("model.decoder.project_in.weight", (h, e_w), "block", "embedding"),
        )
    last = fields.flag("do_layer_norm_before", True) and not fields.flag("_remove_final_layer_norm", False)
    final = norm("model.decoder.final_layer_norm", bias=True, unit="head") if last and affine else ()
    return (embedding("model.decoder.embed_tokens", e_w), positions, *projections, *final)


def opt(fields: Fields) -> Model:
    """OPT: biases unless ``enable_bias`` is false; no last norm where norms come after (OPT 350M); tied."""
    dims = multihead(fields, ("hidden_size",), ("num_attention_heads",))
    dims[f] = fields.size("ffn_dim")
    dims[e_w] = fields.size("word_embed_proj_dim", default=dims[h])
    dims[s_max] = fields.size("max_position_embeddings", default=2048)
    bias, affine = fields.flag("enable_bias", True), fields.flag("layer_norm_elementwise_affine", True)
    weights = (
        *(weight for x in "kvq" for weight in column(f"self_attn.{x}_proj", a * d_head, h, bias)),
        *row("self_attn.out_proj", h, a * d_head, bias),
        *(norm("self_attn_layer_norm", bias=True) if affine else ()),
        *mlp("fc1", "fc2", bias),
        *(norm("final_layer_norm", bias=True) if affine else ()),
    )
    layers = fields.layers("num_hidden_layers")
    is_before = fields.flag("do_layer_norm_before", True)
    kind = Kind("dense", weights, SEQUENTIAL, NORMS_BEFORE if is_before else NORMS_AFTER)
    kinds, pattern = uniform("model.decoder.layers", kind, layers)
    tied = fields.flag("tie_word_embeddings", True)
    before = _before(fields, dims, affine)
    return Model("", "", dims, before, kinds, pattern, head(tied, e_w), tied, MULTIHEAD)
