"""GLM 4.5: dense blocks first, then routed ones with shared experts."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model
from meshcost.models.parts import (
    ROUTED,
    SEQUENTIAL,
    SHARED,
    decoder,
    experts,
    gated_mlp,
    head_norms,
    mixed,
    norms,
    router,
    separate,
)
from meshcost.models.sizes import grouped, routing
from meshcost.symbols import f, f_s


def glm4_moe(fields: Fields) -> Model:
    """GLM 4.5: ``attention_bias`` is for queries, keys and values only; norms of heads on request."""
    dims = grouped(fields, kv_heads=8)
    count = fields.size("n_routed_experts", "num_local_experts", default=128)
    top = fields.size("num_experts_per_tok", default=8)
    width = fields.size("moe_intermediate_size", default=1408)
    dims |= routing(
        fields,
        (fields.called("n_routed_experts", "num_local_experts"), count),
        ("num_experts_per_tok", top),
        width,
    )
    dims[f] = fields.size("intermediate_size")
    shared = fields.size("n_shared_experts", default=1, least=0)
    if shared:
        dims[f_s] = shared * width
    attention = separate(dims, fields.flag("attention_bias", False))
    if fields.flag("use_qk_norm", False):
        attention += head_norms()
    after = norms("input_layernorm", "post_attention_layernorm")
    beside = gated_mlp("mlp.shared_experts", f_s) if shared else ()
    dense = Kind("dense", (*attention, *gated_mlp(), *after), SEQUENTIAL)
    regions = ROUTED + SHARED if shared else ROUTED
    moe = Kind("moe", (*attention, *experts(), *router(), *beside, *after), regions)
    first = fields.size("first_k_dense_replace", default=1, least=0)
    layers = fields.layers("num_hidden_layers")
    blocks = mixed("model.layers", dense, moe, layers, lambda layer: layer >= first)
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", False))
