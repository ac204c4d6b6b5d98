"""gpt-oss: experts with biases, stored (expert, in, out); a learned sink per head."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model, Weight
from meshcost.models.parts import ROUTED, Weights, decoder, norms, router, separate, uniform
from meshcost.models.sizes import grouped, routing
from meshcost.symbols import E, a, f_e, h


def _experts() -> Weights:
    at = "mlp.experts"
    return (
        Weight(f"{at}.gate_up_proj", (E, h, 2 * f_e), "expert", shard=2),
        Weight(f"{at}.gate_up_proj_bias", (E, 2 * f_e), "expert", shard=1),
        Weight(f"{at}.down_proj", (E, f_e, h), "expert", shard=1),
        Weight(f"{at}.down_proj_bias", (E, h), "expert"),
    )


def gpt_oss(fields: Fields) -> Model:
    """gpt-oss: experts in every block; ``intermediate_size`` is the width of one expert."""
    head_dim = None if fields.null("head_dim") else 64
    dims = grouped(fields, kv_heads=8, head_dim=head_dim)
    count = fields.size("num_local_experts", "num_experts", default=128)
    top = fields.size("num_experts_per_tok", default=4)
    width = fields.size("intermediate_size")
    dims |= routing(
        fields,
        (fields.called("num_local_experts", "num_experts"), count),
        ("num_experts_per_tok", top),
        width,
    )
    bias = fields.flag("attention_bias", True)
    sinks = Weight("self_attn.sinks", (a,), "block", shard=0)
    routed = (*router("mlp.router", bias=True), *_experts())
    after = norms("input_layernorm", "post_attention_layernorm")
    kind = Kind("moe", (sinks, *separate(dims, bias, bias), *routed, *after), ROUTED)
    blocks = uniform("model.layers", kind, fields.layers("num_hidden_layers"))
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", False))
