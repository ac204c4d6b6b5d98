"""The order in which a forward pass uses weights; gradients arrive in the opposite one.

PyTorch registers weights in another order: Llama's norms come last in a block and are used first.
"""

import re
from collections.abc import Iterable

from meshcost.strategies.data.placed import Placed

#: What stands in the name of a weight of a block, in the order of use; a name that fits none keeps its place in the MLP.
_SLOTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b(input_layernorm|ln_1|norm_1|ln_attn|ln_mlp|self_attn_layer_norm)\b",
        r"\b(self_attn|attention|self_attention|attn)\b",
        r"\bpost_attention_layernorm\b",
        r"\b(ln_2|norm_2|pre_feedforward_layernorm)\b",
        r"",
        r"\b(post_feedforward_layernorm|final_layer_norm)\b",
    )
)

#: The same inside attention.
_IN_ATTENTION = tuple(
    re.compile(pattern)
    for pattern in (
        r"\.(q_\w+|c_attn|Wqkv|query_key_value|qkv_proj)\b",
        r"\.(k_\w+|kv_\w+)\b",
        r"\.v_proj\b",
        r"",
        r"\.(o_proj|out_proj|c_proj|dense)\b",
    )
)


def in_use_order(weights: Iterable[Placed]) -> list[Placed]:
    """Sort weights by first use, going forward."""
    return sorted(weights, key=lambda item: (item.place, *_slot(item)))


def _slot(item: Placed) -> tuple[int, int]:
    if item.weight.unit != "block":
        return 0, 0
    slot = _find(_SLOTS, item.name, other=4)
    return slot, _find(_IN_ATTENTION, item.name, other=3) if slot == 1 else 0


def _find(patterns: tuple[re.Pattern[str], ...], name: str, other: int) -> int:
    found = (number for number, pattern in enumerate(patterns) if pattern.pattern and pattern.search(name))
    return next(found, other)
