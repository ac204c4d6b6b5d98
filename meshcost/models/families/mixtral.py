"""Mixtral: Mistral with experts in every block."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model
from meshcost.models.parts import ROUTED, decoder, experts, norms, router, separate, uniform
from meshcost.models.sizes import grouped, routing


def mixtral(fields: Fields) -> Model:
    """Mixtral: no dense MLP at all; ``intermediate_size`` is the width of one expert."""
    dims = grouped(fields, kv_heads=8)
    count = fields.size("num_local_experts", "num_experts", default=8)
    top = fields.size("num_experts_per_tok", default=2)
    width = fields.size("intermediate_size")
    dims |= routing(
        fields,
        (fields.called("num_local_experts", "num_experts"), count),
        ("num_experts_per_tok", top),
        width,
    )
    after = norms("input_layernorm", "post_attention_layernorm")
    kind = Kind("moe", (*separate(dims), *router(), *experts(), *after), ROUTED)
    blocks = uniform("model.layers", kind, fields.layers("num_hidden_layers"))
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", False))
