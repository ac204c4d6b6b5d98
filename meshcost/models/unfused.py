"""Experts whose gate and up projections are weights of their own, as torchtitan keeps them; Transformers fuses them."""

from collections.abc import Iterator
from dataclasses import replace

from meshcost.models.model import Model, Weight

_FUSED = "gate_up_proj"


def unfused(model: Model) -> Model:
    """Take fused projections of experts apart; as many elements, more weights.

    >>> from meshcost.models import read_model
    >>> moe = unfused(read_model("mixtral-8x7b")).kinds[0]
    >>> [weight.name.rpartition(".")[2] for weight in moe.weights if weight.group == "expert"]
    ['gate_proj', 'up_proj', 'down_proj']
    """
    kinds = tuple(
        replace(kind, weights=tuple(half for weight in kind.weights for half in _halves(weight)))
        for kind in model.kinds
    )
    return replace(model, kinds=kinds)


def _halves(weight: Weight) -> Iterator[Weight]:
    if weight.group != "expert" or not weight.name.endswith(_FUSED) or weight.shard is None:
        yield weight
        return
    shape = tuple(size / 2 if dim == weight.shard else size for dim, size in enumerate(weight.shape))
    for name in ("gate_proj", "up_proj"):
        yield replace(weight, name=weight.name.removesuffix(_FUSED) + name, shape=shape)
