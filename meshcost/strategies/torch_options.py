"""What can be set on PyTorch's own parallel code, by torch's own names and with its own defaults (torch 2.13).

Source   torch.nn.parallel.DistributedDataParallel, torch.distributed.optim.ZeroRedundancyOptimizer,
         torch.distributed.fsdp: fully_shard, FSDPModule and FullyShardedDataParallel, torch.distributed.tensor.parallel,
         torch.distributed.pipelining, torch.nn.utils.clip_grad_norm_
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool

#: A unit of ``fully_shard``: one module or several together, by name. ``blocks`` stands for each block on its own.
Unit = str | tuple[str, ...]

BLOCKS = "blocks"

#: What torchtitan and Accelerate wrap: embedding, blocks, and the last norm with the head.
SEPARATE_UNITS: tuple[Unit, ...] = ("embedding", BLOCKS, ("norm", "head"))

ShardingStrategy = Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"]

Reshard = StrictBool | Annotated[int, Field(strict=True, ge=2)]


class TorchOptions(BaseModel):
    """Options of torch that a layout does not know; they hold where ``framework: torch`` does.

    A field of null follows the layout, or torch where the layout is silent. ``step`` asks for one of the first steps, in
    which torch still agrees on buckets and shapes; null is any later one. ``weights_dtype`` is what weights are stored
    in: with fully_shard fp32, otherwise the weights of the job's precision. ``buffer_bytes`` is the size of the buffers
    that DistributedDataParallel broadcasts.

    ``units`` are wrapped by fully_shard in this order, the root last; a unit is ``blocks`` (each block on its own),
    ``embedding``, ``norm``, ``head``, the name of a module (with ``*``: each module of such a name), or a list of names
    that form one unit. ``keep_last_unit`` leaves the last of them gathered after its forward. ``reshard_after_forward``
    goes to every call of fully_shard; null is torch's own rule (all but the root). ``prefetch``: torch
    guesses which unit's backward comes next, or each was told to gather the next one, forward and backward
    (``next_unit``: set_modules_to_forward_prefetch and set_modules_to_backward_prefetch, as torchtitan with experts).
    ``shard_placement_fn`` gives patterns of names of weights the dim along which they are cut, where it is not 0.
    ``set_requires_gradient_sync`` says after which micro-batches gradients are reduced.
    ``wrapper`` FullyShardedDataParallel is the older FSDP: the weights of a unit lie in one flat parameter. Its ``units``
    are single modules, the rule of ``auto_wrap_policy``. ``sharding_strategy`` of null follows the layout: FULL_SHARD, or
    SHARD_GRAD_OP where weights stay gathered after forward; with ``replicate`` the hybrid ones; NO_SHARD for ddp. Where
    ``set_requires_gradient_sync`` is ``last``, all micro-batches but the last run under no_sync.
    ``tp_plan`` auto is the plan that Transformers has for a model, tensor parallelism alone: plain styles on linears, and
    norms of heads whose gradients are summed in backward.
    ``fused_experts``: gate and up projections of experts are one weight, as in Transformers, or two, as in torchtitan.
    ``exchange_inside``: tokens travel within the module of the experts, so that its weights are gathered before.
    ``flat_expert_mesh``: ranks of the mesh of experts also form a mesh of one dim, over which DTensor then takes the
    norm of their gradients in one call (torchtitan without tensor parallelism and replicas). ``checkpoint_saves`` lists
    operations whose results a selective policy saves, so that they are not repeated.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    # which step: null is every step after the first few, in which torch still finds things out
    step: Annotated[int, Field(strict=True, ge=0)] | None = None
    # DistributedDataParallel
    bucket_cap_mb: Annotated[float, Field(gt=0)] | None = None
    find_unused_parameters: StrictBool = False
    static_graph: StrictBool = False
    gradient_as_bucket_view: StrictBool = False
    broadcast_buffers: StrictBool = True
    buffer_bytes: Annotated[int, Field(strict=True, ge=0)] = 0
    comm_hook: Literal["bf16_compress_hook", "fp16_compress_hook"] | None = None
    # ZeroRedundancyOptimizer
    parameters_as_bucket_view: StrictBool = False
    # fully_shard, or FullyShardedDataParallel
    wrapper: Literal["fully_shard", "FullyShardedDataParallel"] = "fully_shard"
    units: tuple[Unit, ...] = (BLOCKS,)
    keep_last_unit: StrictBool = False
    reshard_after_forward: Reshard | None = None
    prefetch: Literal["implicit", "next_unit"] = "implicit"
    shard_placement_fn: dict[str, Annotated[int, Field(strict=True, ge=0, le=8)]] = Field(
        default_factory=dict
    )
    set_requires_gradient_sync: Literal["every", "last"] | None = None
    set_reshard_after_backward: Literal["every", "last"] = "every"
    set_is_last_backward: StrictBool = False
    weights_dtype: Literal["fp64", "fp32", "bf16", "fp16"] | None = None
    # FullyShardedDataParallel alone
    sharding_strategy: ShardingStrategy | None = None
    backward_prefetch: Literal["BACKWARD_PRE", "BACKWARD_POST"] | None = "BACKWARD_PRE"
    forward_prefetch: StrictBool = False
    limit_all_gathers: StrictBool = True
    use_orig_params: StrictBool = False
    keep_low_precision_grads: StrictBool = False
    # parallelize_module
    prepare_module_input: StrictBool = False
    # the plans of Transformers
    tp_plan: Literal["auto"] | None = None
    # torch.utils.checkpoint, around each block where the job says ``recompute: full``
    early_stop: StrictBool = True
    checkpoint_saves: tuple[Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all"], ...] = ()
    # pipelining
    static_shapes: StrictBool = True
    # context parallel
    rotate_method: Literal["allgather", "alltoall"] | None = None
    load_balance: StrictBool = True
    # expert parallel
    fused_experts: StrictBool = True
    flat_expert_mesh: StrictBool = False
    exchange_counts: StrictBool = True
    exchange_inside: StrictBool = False
    # the step
    optimizer: Literal["AdamW", "Adam", "SGD"] | None = "AdamW"
    foreach: StrictBool | None = None
    fused: StrictBool | None = None
    clip_foreach: StrictBool | None = None
