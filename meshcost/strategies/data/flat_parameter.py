"""Flat parameters of FullyShardedDataParallel: how large they are with their padding, and what its strategies mean.

The weights of a unit follow each other in one vector, which is cut into as many equal parts as there are ranks. With
``use_orig_params`` each weight begins at a multiple of 16 bytes.

Source   torch.distributed.fsdp._flat_param: FlatParamHandle, torch 2.13
"""

from collections.abc import Sequence
from dataclasses import replace

from sympy import Add, Expr, Integer, ceiling

from meshcost.formula import value
from meshcost.models import Weight
from meshcost.sharding import Flat
from meshcost.strategies.data.options import SHARDS_WEIGHTS
from meshcost.strategies.data.placed import Placed
from meshcost.strategies.setting import Setting
from meshcost.strategies.view import View

#: Bytes that the beginning of a weight is a multiple of, as TorchInductor wants it.
ALIGNMENT = 16


def sharding_strategy(setting: Setting) -> str:
    """Name what FullyShardedDataParallel calls a layout: as the job says it, or as it follows from the layout."""
    if (asked := setting.torch.sharding_strategy) is not None:
        return asked
    data = setting.parallel["data"]
    if data.strategy not in SHARDS_WEIGHTS:
        return "NO_SHARD"
    whole, kept = (
        ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2") if data.replicate > 1 else ("FULL_SHARD", "SHARD_GRAD_OP")
    )
    return kept if data.reshard_after_forward is False else whole


def is_sharded(setting: Setting) -> bool:
    """Whether ranks hold parts of the flat parameters."""
    return sharding_strategy(setting) != "NO_SHARD"


def reshards(setting: Setting) -> bool:
    """Whether weights are let go of after forward; those of the root never are."""
    return sharding_strategy(setting) in ("FULL_SHARD", "HYBRID_SHARD")


def flat_rules(setting: Setting) -> Flat:
    """Say what FullyShardedDataParallel was told."""
    torch = setting.torch
    return Flat(
        shards=is_sharded(setting),
        reshards=reshards(setting),
        backward_prefetch=torch.backward_prefetch,
        forward_prefetch=torch.forward_prefetch,
        first=torch.step == 0,
    )


def trained_together(placed: Sequence[Placed], units: Sequence[tuple[str, ...]]) -> list[Placed]:
    """Say of each weight whether it gets a gradient: all of a flat parameter do, if one of them trains."""
    owners = {item.name: owner(item.name, units) for item in placed}
    trained = {owners[item.name] for item in placed if item.weight.trainable}
    return [
        item._replace(weight=replace(item.weight, trainable=owners[item.name] in trained)) for item in placed
    ]


def owner(name: str, units: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Find the innermost unit that holds a weight; () for the root."""
    around = [unit for unit in units if any(name.startswith(f"{module}.") for module in unit)]
    return max(around, key=lambda unit: len(unit[0]), default=())


def flat_elements(view: View, weights: tuple[Weight, ...], ranks: Expr) -> Expr:
    """Elements of a flat parameter on all ranks together, padding included."""
    options = view.setting.torch
    counts = [view.local(weight) for weight in weights]
    if options.use_orig_params:
        step = ALIGNMENT // int(view.setting.precision.bytes("weights"))
        counts = [*(_multiple(view, count, Integer(step)) for count in counts[:-1]), counts[-1]]
    # NO_SHARD has nothing to cut, and yet use_orig_params pads it.
    cuts = is_sharded(view.setting) or options.use_orig_params
    return _multiple(view, Add(*counts), ranks) if cuts else Add(*counts)


def _multiple(view: View, elements: Expr, step: Expr) -> Expr:
    """Round up to a multiple, where it is none."""
    if value(elements / step, view.values).denominator == 1:
        return elements
    return step * ceiling(elements / step)
