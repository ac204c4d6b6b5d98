"""GPT-2 and GPT-3: learned positions, biases everywhere, linears stored (in, out)."""

from sympy import Expr

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model, Weight
from meshcost.models.parts import MULTIHEAD, SEQUENTIAL, Weights, embedding, head, norm, uniform
from meshcost.models.sizes import multihead
from meshcost.symbols import a, d_head, f, h, s_max


def _column(name: str, into: Expr, out: Expr) -> Weights:
    weight = Weight(f"{name}.weight", (into, out), "block", shard=1, transposed=True)
    return weight, Weight(f"{name}.bias", (out,), "block", shard=0)


def _row(name: str, into: Expr, out: Expr) -> Weights:
    weight = Weight(f"{name}.weight", (into, out), "block", shard=0, transposed=True)
    return weight, Weight(f"{name}.bias", (out,), "block")


BLOCK = (
    *norm("ln_1", bias=True),
    *_column("attn.c_attn", h, 3 * a * d_head),
    *_row("attn.c_proj", a * d_head, h),
    *norm("ln_2", bias=True),
    *_column("mlp.c_fc", h, f),
    *_row("mlp.c_proj", f, h),
)


def gpt2(fields: Fields) -> Model:
    """GPT-2: the MLP is four times as wide as the model unless ``n_inner`` says otherwise; tied."""
    dims = multihead(fields, ("n_embd", "hidden_size"), ("n_head", "num_attention_heads"))
    dims[f] = fields.maybe("n_inner") or 4 * dims[h]
    dims[s_max] = fields.size("n_positions", "max_position_embeddings", default=1024)
    fields.unsupported("add_cross_attention", True, "it is for encoder-decoder models")
    layers = fields.layers("n_layer", "num_hidden_layers")
    kinds, pattern = uniform("transformer.h", Kind("dense", BLOCK, SEQUENTIAL), layers)
    positions = Weight("transformer.wpe.weight", (s_max, h), "position", "embedding")
    tied = fields.flag("tie_word_embeddings", True)
    before = (embedding("transformer.wte"), positions)
    after = (*norm("transformer.ln_f", bias=True, unit="head"), *head(tied))
    return Model("", "", dims, before, kinds, pattern, after, tied, MULTIHEAD)
