"""BERT with its masked-word head: norms after attention and MLP, learned positions, token types."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model, Weight
from meshcost.models.parts import (
    MULTIHEAD,
    SEQUENTIAL,
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
from meshcost.symbols import V, a, d_head, f, h, n_type, s_max

BLOCK = (
    *(w for x in ("query", "key", "value") for w in column(f"attention.self.{x}", a * d_head, h, bias=True)),
    *row("attention.output.dense", h, a * d_head, bias=True),
    *norm("attention.output.LayerNorm", bias=True),
    *mlp("intermediate.dense", "output.dense", bias=True),
    *norm("output.LayerNorm", bias=True),
)
BEFORE = (
    embedding("bert.embeddings.word_embeddings"),
    Weight("bert.embeddings.position_embeddings.weight", (s_max, h), "position", "embedding"),
    Weight("bert.embeddings.token_type_embeddings.weight", (n_type, h), "position", "embedding"),
    *norm("bert.embeddings.LayerNorm", bias=True, unit="embedding"),
)


def _after(tied: bool) -> Weights:
    at = "cls.predictions"
    # An untied decoder has a bias of its own, and this one is left over.
    return (
        Weight(f"{at}.bias", (V,), "head" if tied else "block", "head", shard=0),
        Weight(f"{at}.transform.dense.weight", (h, h), "block", "head"),
        Weight(f"{at}.transform.dense.bias", (h,), "block", "head"),
        *norm(f"{at}.transform.LayerNorm", bias=True, unit="head"),
        *(() if tied else head(tied, bias=True, name=f"{at}.decoder")),
    )


def bert(fields: Fields) -> Model:
    """BERT: as ``BertForMaskedLM`` has it, without a pooler; tied."""
    dims = multihead(fields, ("hidden_size",), ("num_attention_heads",))
    dims[f] = fields.size("intermediate_size")
    dims[s_max] = fields.size("max_position_embeddings", default=512)
    dims[n_type] = fields.size("type_vocab_size", default=2)
    fields.unsupported("add_cross_attention", True, "it is for encoder-decoder models")
    layers = fields.layers("num_hidden_layers")
    kinds, pattern = uniform("bert.encoder.layer", Kind("dense", BLOCK, SEQUENTIAL), layers)
    tied = fields.flag("tie_word_embeddings", True)
    return Model("", "", dims, BEFORE, kinds, pattern, _after(tied), tied, MULTIHEAD)
