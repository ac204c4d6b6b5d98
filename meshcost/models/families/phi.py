"""Phi 1.5 and 2: attention and MLP read one norm; biases everywhere, on the head too."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model
from meshcost.models.parts import (
    GROUPED,
    PARALLEL,
    embedding,
    head,
    head_norms,
    mlp,
    norm,
    norms,
    separate,
    uniform,
)
from meshcost.models.sizes import even_heads, grouped
from meshcost.symbols import f

#: Heads are normalised after all projections, where they are.
USE_ORDER = ("input_layernorm", "q_proj", "k_proj", "v_proj", "q_layernorm", "k_layernorm", "dense", "mlp")


def phi(fields: Fields) -> Model:
    """Phi: norms of heads on request."""
    dims = grouped(fields)
    dims[f] = fields.size("intermediate_size")
    attention = separate(dims, bias=True, out_bias=True, out="dense")
    if fields.flag("qk_layernorm", False):
        even_heads(fields, dims, "Phi's head norms have the size hidden_size / num_attention_heads")
        attention += head_norms("self_attn.q_layernorm", "self_attn.k_layernorm", bias=True)
    weights = (*attention, *mlp("mlp.fc1", "mlp.fc2", bias=True), *norms("input_layernorm", bias=True))
    kind = Kind("dense", weights, PARALLEL, USE_ORDER)
    kinds, pattern = uniform("model.layers", kind, fields.layers("num_hidden_layers"))
    tied = fields.flag("tie_word_embeddings", False)
    before = (embedding("model.embed_tokens"),)
    after = (*norm("model.final_layernorm", bias=True, unit="head"), *head(tied, bias=True))
    return Model("", "", dims, before, kinds, pattern, after, tied, GROUPED)
