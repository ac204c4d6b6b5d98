"""GPT-J: attention and MLP read one norm; rotary positions."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model
from meshcost.models.parts import MULTIHEAD, PARALLEL, column, embedding, head, mlp, norm, row, uniform
from meshcost.models.sizes import multihead
from meshcost.symbols import a, d_head, f, h

BLOCK = (
    *norm("ln_1", bias=True),
    *(weight for x in "kvq" for weight in column(f"attn.{x}_proj", a * d_head, h)),
    *row("attn.out_proj", h, a * d_head),
    *mlp("mlp.fc_in", "mlp.fc_out", bias=True),
)


def gptj(fields: Fields) -> Model:
    """GPT-J: no bias in attention, one on the head, which stays when the head is tied."""
    dims = multihead(fields, ("n_embd", "hidden_size"), ("n_head", "num_attention_heads"))
    dims[f] = fields.maybe("n_inner") or 4 * dims[h]
    layers = fields.layers("n_layer", "num_hidden_layers")
    kinds, pattern = uniform("transformer.h", Kind("dense", BLOCK, PARALLEL), layers)
    tied = fields.flag("tie_word_embeddings", False)
    after = (*norm("transformer.ln_f", bias=True, unit="head"), *head(tied, bias=True))
    return Model("", "", dims, (embedding("transformer.wte"),), kinds, pattern, after, tied, MULTIHEAD)
