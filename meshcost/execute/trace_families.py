"""Families of which trace has a PyTorch model, and how the modules of a block are wired. Knows no torch."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wiring:
    """Modules of a block by their paths in it; "" and () where a family has none.

    ``norms`` stand before attention, behind it, before the MLP and behind that; where attention and MLP work side by side
    and there is one norm alone, both read it. ``mlp`` is the module of the MLP, or its linears where it has none.
    """

    attention: str = "self_attn"
    mlp: tuple[str, ...] = ("mlp",)
    norms: tuple[str, str, str, str] = ("input_layernorm", "", "post_attention_layernorm", "")


_LLAMA = Wiring()
_GPT = Wiring("attn", norms=("ln_1", "", "ln_2", ""))
_AROUND = Wiring(
    norms=(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
)
_BEHIND = Wiring(norms=("", "post_attention_layernorm", "", "post_feedforward_layernorm"))

#: Those whose weights trace can split over the tensor axis, too.
SPLIT_FAMILIES = (
    "deepseek_v2", "deepseek_v3", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3",
)  # fmt: skip

WIRINGS: Mapping[str, Wiring] = {
    **dict.fromkeys(SPLIT_FAMILIES, _LLAMA),
    "cohere": _LLAMA,
    "gemma": _LLAMA,
    "gemma2": _AROUND,
    "gemma3_text": _AROUND,
    "gpt2": _GPT,
    "gpt_neox": Wiring("attention"),
    "gptj": _GPT,
    "olmo2": _BEHIND,
    "opt": Wiring(mlp=("fc1", "fc2"), norms=("self_attn_layer_norm", "", "final_layer_norm", "")),
    "phi": _LLAMA,
    "phi3": _LLAMA,
}

BUILT_FAMILIES = tuple(sorted(WIRINGS))
