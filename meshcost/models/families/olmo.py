"""OLMo 2 and OLMoE: all query heads are normalised together, and all key heads."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model, Region
from meshcost.models.parts import (
    ROUTED,
    SEQUENTIAL,
    Dims,
    Weights,
    decoder,
    experts,
    gated_mlp,
    lone,
    norms,
    router,
    separate,
    uniform,
    wide_norms,
)
from meshcost.models.sizes import even_heads, grouped, routing
from meshcost.symbols import a, a_kv, d_head, f, h


def _attention(fields: Fields, dims: Dims) -> tuple[Weights, Region]:
    bias = fields.flag("attention_bias", False)
    weights = (*separate(dims, bias, bias), *wide_norms(dims, (a * d_head,), (a_kv * d_head,)))
    return weights, Region("attention", (h,), h, split_norms=1 if lone(dims) else 2)


def olmo2(fields: Fields) -> Model:
    """OLMo 2: norms after attention and MLP instead of before."""
    dims = grouped(fields)
    dims[f] = fields.size("intermediate_size")
    attention, region = _attention(fields, dims)
    after = norms("post_attention_layernorm", "post_feedforward_layernorm")
    kind = Kind("dense", (*attention, *gated_mlp(), *after), (region, *SEQUENTIAL[1:]))
    blocks = uniform("model.layers", kind, fields.layers("num_hidden_layers"))
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", False))


def olmoe(fields: Fields) -> Model:
    """OLMoE: experts in every block."""
    dims = grouped(fields)
    even_heads(fields, dims, "OLMoE's query norm has the hidden size")
    count = fields.size("num_experts", "num_local_experts", default=64)
    top = fields.size("num_experts_per_tok", default=8)
    width = fields.size("intermediate_size")
    dims |= routing(
        fields,
        (fields.called("num_experts", "num_local_experts"), count),
        ("num_experts_per_tok", top),
        width,
    )
    attention, region = _attention(fields, dims)
    weights = (*attention, *router(), *experts(), *norms("input_layernorm", "post_attention_layernorm"))
    kind = Kind("moe", weights, (region, *ROUTED[1:]))
    blocks = uniform("model.layers", kind, fields.layers("num_hidden_layers"))
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", False))
