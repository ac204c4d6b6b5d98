"""Phi 3 and 4: Llama with fused projections."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model
from meshcost.models.parts import SEQUENTIAL, column, decoder, fused, norms, row, uniform
from meshcost.models.sizes import grouped
from meshcost.symbols import a, d_head, f, h


def phi3(fields: Fields) -> Model:
    """Phi 3: the output projection is registered before the fused queries, keys and values."""
    dims = grouped(fields)
    dims[f] = fields.size("intermediate_size")
    attention = (*row("self_attn.o_proj", h, a * d_head), *fused("self_attn.qkv_proj", dims))
    mlp = (*column("mlp.gate_up_proj", 2 * f, h), *row("mlp.down_proj", h, f))
    after = norms("input_layernorm", "post_attention_layernorm")
    kind = Kind("dense", (*attention, *mlp, *after), SEQUENTIAL)
    blocks = uniform("model.layers", kind, fields.layers("num_hidden_layers"))
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", False))
