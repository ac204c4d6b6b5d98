"""Who reads which option of torch: one table, which ``docs/torch.md`` shows and a job is held against.

An option that the job's own wrapper does not read changes nothing, which is said and not refused: one set of options may
serve jobs that are wrapped in different ways.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from meshcost.strategies.data.options import SHARDS_WEIGHTS
from meshcost.strategies.setting import Setting
from meshcost.strategies.torch_options import TorchOptions

DDP, ZERO = "DistributedDataParallel", "ZeroRedundancyOptimizer"
FULLY_SHARD, FLAT = "fully_shard", "FullyShardedDataParallel"

#: How a job asks for each wrapper.
_ASKED_BY: Mapping[str, str] = {
    DDP: "strategy: ddp or zero1",
    ZERO: "strategy: zero1",
    FULLY_SHARD: "strategy: fsdp or zero3",
    FLAT: "wrapper: FullyShardedDataParallel",
}

_BOTH = (FULLY_SHARD, FLAT)
_EVERY = ("every job",)

#: Options by name, and who reads them: wrappers, an axis, or every job.
READERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "step": _EVERY,
        **dict.fromkeys(
            ("bucket_cap_mb", "find_unused_parameters", "static_graph", "gradient_as_bucket_view",
             "broadcast_buffers", "buffer_bytes", "comm_hook"),
            (DDP,),
        ),
        "parameters_as_bucket_view": (ZERO,),
        "wrapper": _EVERY,
        "units": _BOTH,
        **dict.fromkeys(
            ("keep_last_unit", "reshard_after_forward", "prefetch", "shard_placement_fn",
             "set_reshard_after_backward", "set_is_last_backward"),
            (FULLY_SHARD,),
        ),
        "set_requires_gradient_sync": _EVERY,
        "weights_dtype": _EVERY,
        **dict.fromkeys(
            ("sharding_strategy", "backward_prefetch", "forward_prefetch", "limit_all_gathers",
             "use_orig_params", "keep_low_precision_grads"),
            (FLAT,),
        ),
        **dict.fromkeys(("prepare_module_input", "tp_plan"), ("tensor",)),
        **dict.fromkeys(("early_stop", "checkpoint_saves"), ("recompute",)),
        "static_shapes": ("pipeline",),
        **dict.fromkeys(("rotate_method", "load_balance"), ("context",)),
        **dict.fromkeys(
            ("fused_experts", "flat_expert_mesh", "exchange_counts", "exchange_inside"), ("expert",)
        ),
        **dict.fromkeys(("optimizer", "foreach", "fused", "clip_foreach"), _EVERY),
    }
)  # fmt: skip


def wrappers_of(setting: Setting) -> tuple[str, ...]:
    """What a job's model and optimizer are wrapped in.

    The older FSDP stands for any strategy; otherwise the strategy on the data axis decides.
    """
    strategy = setting.parallel["data"].strategy
    if setting.wraps_flat:
        return (FLAT,)
    if strategy in SHARDS_WEIGHTS:
        return (FULLY_SHARD,)
    return (DDP, ZERO) if strategy == "zero1" else (DDP,)


def unread_options(setting: Setting) -> Iterator[str]:
    """Say which options are set that only a wrapper reads which the job does not have."""
    mine = wrappers_of(setting)
    for name, readers in READERS.items():
        default = TorchOptions.model_fields[name].get_default(call_default_factory=True)
        others = [reader for reader in readers if reader in _ASKED_BY]
        if others and not set(others) & set(mine) and getattr(setting.torch, name) != default:
            asked = " or ".join(_ASKED_BY[other] for other in others)
            yield (
                f"torch.{name} changes nothing: only {' and '.join(others)} {'read' if len(others) > 1 else 'reads'} it "
                f"({asked}), and this job uses {' with '.join(mine)}."
            )
