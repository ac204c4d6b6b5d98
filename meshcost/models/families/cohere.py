"""Command R: attention and MLP read one norm, which has no bias."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model
from meshcost.models.parts import PARALLEL, decoder, gated_mlp, norms, separate, uniform, wide_norms
from meshcost.models.sizes import grouped
from meshcost.symbols import a, a_kv, d_head, f

#: Heads are normalised after all projections, where they are.
USE_ORDER = ("input_layernorm", "q_proj", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj", "mlp")


def cohere(fields: Fields) -> Model:
    """Command R: tied; norms of heads on request, each head with weights of its own."""
    dims, bias = grouped(fields), fields.flag("attention_bias", False)
    dims[f] = fields.size("intermediate_size")
    attention = separate(dims, bias, bias)
    if fields.flag("use_qk_norm", False):
        attention += wide_norms(dims, (a, d_head), (a_kv, d_head))
    kind = Kind("dense", (*attention, *gated_mlp(), *norms("input_layernorm")), PARALLEL, USE_ORDER)
    blocks = uniform("model.layers", kind, fields.layers("num_hidden_layers"))
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", True))
