"""Llama and the families that changed a bias, a norm or a default: Mistral, Qwen 2 and 3, SmolLM 3."""

from meshcost.models.fields import Fields
from meshcost.models.model import Kind, Model
from meshcost.models.parts import (
    SEQUENTIAL,
    Dims,
    Weights,
    decoder,
    gated_mlp,
    head_norms,
    norms,
    separate,
    uniform,
)
from meshcost.models.sizes import grouped
from meshcost.symbols import f


def _decoder(fields: Fields, dims: Dims, attention: Weights, mlp_bias: bool, tied: bool) -> Model:
    dims[f] = fields.size("intermediate_size")
    weights = (*attention, *gated_mlp(bias=mlp_bias), *norms("input_layernorm", "post_attention_layernorm"))
    blocks = uniform("model.layers", Kind("dense", weights, SEQUENTIAL), fields.layers("num_hidden_layers"))
    return decoder(dims, blocks, fields.flag("tie_word_embeddings", tied))


def llama(fields: Fields) -> Model:
    """Llama: RMS norms, rotary positions, gated MLP; biases on request."""
    dims, bias = grouped(fields), fields.flag("attention_bias", False)
    return _decoder(fields, dims, separate(dims, bias, bias), fields.flag("mlp_bias", False), tied=False)


def mistral(fields: Fields) -> Model:
    """Mistral: no biases, 8 key and value heads unless told otherwise."""
    dims = grouped(fields, kv_heads=8)
    return _decoder(fields, dims, separate(dims), mlp_bias=False, tied=False)


def qwen2(fields: Fields) -> Model:
    """Qwen 2 and 2.5: always a bias on queries, keys and values, never on the output."""
    dims = grouped(fields, kv_heads=32)
    return _decoder(fields, dims, separate(dims, bias=True), mlp_bias=False, tied=False)


def qwen3(fields: Fields) -> Model:
    """Qwen 3: heads of 128, normalised one by one."""
    dims, bias = grouped(fields, kv_heads=32, head_dim=128), fields.flag("attention_bias", False)
    attention = (*separate(dims, bias, bias), *head_norms())
    return _decoder(fields, dims, attention, mlp_bias=False, tied=False)


def smollm3(fields: Fields) -> Model:
    """SmolLM 3: Llama with some layers without positions, which has no weights; tied."""
    dims, bias = grouped(fields, kv_heads=4), fields.flag("attention_bias", False)
    return _decoder(fields, dims, separate(dims, bias, bias), fields.flag("mlp_bias", False), tied=True)
