"""What FullyShardedDataParallel cannot do, or what is not predicted of it: each in a sentence."""

from collections.abc import Iterator

from meshcost.strategies.data.flat_parameter import owner, sharding_strategy
from meshcost.strategies.data.fully_shard import ROOT, unit_calls
from meshcost.strategies.data.options import SHARDS_WEIGHTS
from meshcost.strategies.data.placed import Units, placed_weights
from meshcost.strategies.setting import Setting

_STRATEGIES = {
    False: ("FULL_SHARD", "SHARD_GRAD_OP"),
    True: ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"),
}


def wrapper_problems(setting: Setting) -> Iterator[str]:
    """Say what of a layout FullyShardedDataParallel cannot do."""
    if not setting.wraps_flat:
        return
    for axis in ("tensor", "pipeline", "context", "expert"):
        if setting.size(axis) > 1:
            yield f"parallel.{axis}: beside FullyShardedDataParallel it is not predicted. Choose wrapper: fully_shard."
    yield from _strategy_problems(setting)
    yield from _precision_problems(setting)


def _strategy_problems(setting: Setting) -> Iterator[str]:
    data, asked = setting.parallel["data"], setting.torch.sharding_strategy
    ranks = data.size // data.replicate
    if ranks == 1:
        yield "parallel.data.size: FullyShardedDataParallel of one rank sums with itself. Choose 2 or more."
    if data.gather == "once":
        yield "parallel.data.gather: FullyShardedDataParallel gathers in every micro-batch. Leave it out."
    if data.strategy == "zero1":
        yield "parallel.data.strategy: FullyShardedDataParallel has no zero1. Choose ddp or fsdp."
        return
    legal = _STRATEGIES[data.replicate > 1] if data.strategy in SHARDS_WEIGHTS else ("NO_SHARD",)
    if asked is not None and asked not in legal:
        yield (
            f"torch.sharding_strategy: {asked} is not {data.strategy} with replicate: {data.replicate}. "
            f"Choose {' or '.join(legal)}."
        )
    elif (
        data.reshard_after_forward is not None
        and sharding_strategy(setting) != legal[not data.reshard_after_forward]
    ):
        yield "torch.sharding_strategy: parallel.data.reshard_after_forward says otherwise. Leave one of them out."


def _precision_problems(setting: Setting) -> Iterator[str]:
    torch, stored = setting.torch, setting.torch.weights_dtype or "fp32"
    if torch.keep_low_precision_grads and torch.optimizer in ("Adam", "AdamW"):
        reduced = setting.precision.dtype("reduce")
        if reduced != stored:
            yield (
                f"torch.keep_low_precision_grads: {torch.optimizer} of PyTorch 2.13 stops at gradients in {reduced} for "
                f"weights in {stored}. Choose optimizer: SGD, or leave it out."
            )


def trained_problems(setting: Setting, units: Units) -> Iterator[str]:
    """Say which flat parameters would hold weights that train beside weights that do not."""
    if not setting.wraps_flat or setting.torch.use_orig_params:
        return
    placed = placed_weights(setting, units, 0)
    kinds = {modules: kind for kind, modules, _ in unit_calls(setting, placed)}
    flags: dict[tuple[str, ...], set[bool]] = {}
    for item in placed:
        flags.setdefault(owner(item.name, list(kinds)), set()).add(item.weight.trainable)
    for name in dict.fromkeys(kinds.get(modules, ROOT) for modules, found in flags.items() if len(found) > 1):
        yield (
            f"torch.use_orig_params: {name} holds weights that train and weights that do not, which "
            "FullyShardedDataParallel refuses. Write use_orig_params: true."
        )
