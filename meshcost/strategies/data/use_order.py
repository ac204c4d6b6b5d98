"""The order in which a forward pass uses weights; gradients arrive in the opposite one.

PyTorch registers weights in another order: Llama's norms come last in a block and are used first.

Source   the models of transformers 5, run with a hook on each weight (tests/execute/test_hugging_face.py)
"""

import re
from collections.abc import Iterable, Sequence

from meshcost.models import Model
from meshcost.strategies.data.placed import Placed

#: What stands in the name of a weight of a block, in the order of use; a name that fits none keeps its place in the MLP.
_SLOTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\b(input_layernorm|ln_1|norm_1|ln_attn|ln_mlp)\b",
        r"\b(self_attn|attention|self_attention|attn)\b",
        r"\bpost_attention_layernorm\b",
        r"\b(ln_2|norm_2|pre_feedforward_layernorm)\b",
        r"",
        r"\bpost_feedforward_layernorm\b",
    )
)
_ATTENTION, _MLP = 1, 4

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

#: The last of them follows when tokens have met.
_OUT = len(_IN_ATTENTION) - 1

#: And inside an MLP: tokens are routed before experts work on them, and shared experts work last.
_IN_MLP = tuple(re.compile(pattern) for pattern in (r"\.(gate|router)\.", r"", r"\.shared_experts?\."))

#: Outside the blocks, all in the order of registration but for what narrows the activations before the head.
_OUTSIDE = (re.compile(""), re.compile(r"\bproject_out\b"))


def in_use_order(weights: Iterable[Placed], model: Model) -> list[Placed]:
    """Sort weights by first use, going forward."""
    told = {kind.name: kind.use_order for kind in model.kinds}

    def slot(item: Placed) -> tuple[int, ...]:
        order = told.get(item.label.rpartition(" ")[0])
        return item.place, *(_told(order, item.name) if order else _named(item))

    return _biases_placed(sorted(weights, key=slot))


def behind_attention(weights: Sequence[Placed]) -> set[str]:
    """Names of the weights of blocks that are used after tokens have met, of all weights in the order of use."""
    found: set[str] = set()
    met: set[int] = set()
    for item in reversed(weights):
        attends = _SLOTS[_ATTENTION].search(item.name) is not None
        if attends and _find(_IN_ATTENTION, item.name, other=3) < _OUT:
            met.add(item.place)
        elif item.weight.unit == "block" and item.place not in met:
            found.add(item.name)
    return found


def _told(order: Sequence[str], name: str) -> tuple[int, int]:
    modules = name.split(".")
    slot = next((number for number, module in enumerate(order) if module in modules), len(order))
    return slot, _find(_IN_ATTENTION, name, other=3)


def _named(item: Placed) -> tuple[int, int]:
    """Find the slot by the usual names of modules."""
    if item.weight.unit != "block":
        return _find(_OUTSIDE, item.name, other=0), 0
    slot = _find(_SLOTS, item.name, other=_MLP)
    inside = {_ATTENTION: (_IN_ATTENTION, 3), _MLP: (_IN_MLP, 1)}.get(slot)
    return slot, _find(inside[0], item.name, other=inside[1]) if inside else 0


def _find(patterns: Sequence[re.Pattern[str]], name: str, other: int) -> int:
    found = (number for number, pattern in enumerate(patterns) if pattern.pattern and pattern.search(name))
    return next(found, other)


def _biases_placed(weights: list[Placed]) -> list[Placed]:
    """Put the bias of a norm, and of experts, before the weight: its gradient comes after, that of a linear before."""
    placed: list[Placed] = []
    for item in weights:
        together = placed and item.weight.group in ("norm", "expert") and _is_bias(placed[-1].name, item.name)
        placed.insert(len(placed) - 1 if together else len(placed), item)
    return placed


def _is_bias(weight: str, name: str) -> bool:
    return name in (f"{weight}_bias", f"{weight.removesuffix('.weight')}.bias")
