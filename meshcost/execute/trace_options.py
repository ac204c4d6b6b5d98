"""What can be set on PyTorch's own parallel code, by torch's own names and with its own defaults."""

from dataclasses import dataclass
from typing import Literal

#: A unit of ``fully_shard``: one module or several together, by name. ``blocks`` stands for each block on its own.
Unit = str | tuple[str, ...]

BLOCKS = "blocks"

#: What torchtitan and Accelerate wrap: embedding, blocks, and the last norm with the head.
SEPARATE_UNITS: tuple[Unit, ...] = ("model.embed_tokens", BLOCKS, ("model.norm", "lm_head"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceOptions:
    """Options of torch that a job does not know. A field of None follows the job, or torch where the job is silent.

    ``weights_dtype`` is what weights are stored in: with fully_shard fp32, otherwise the weights of the job's precision.
    ``units`` are wrapped by fully_shard in this order, the root last. ``keep_last_unit`` leaves the last of them gathered
    after its forward. ``reshard_after_forward`` goes to every call of fully_shard; None is torch's own rule (all but the
    root). ``set_requires_gradient_sync`` says after which micro-batches gradients are reduced.
    """

    # DistributedDataParallel
    bucket_cap_mb: float | None = None
    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    broadcast_buffers: bool = True
    # ZeroRedundancyOptimizer
    parameters_as_bucket_view: bool = False
    # fully_shard
    units: tuple[Unit, ...] = (BLOCKS,)
    keep_last_unit: bool = False
    reshard_after_forward: bool | int | None = None
    set_requires_gradient_sync: Literal["every", "last"] | None = None
    set_reshard_after_backward: Literal["every", "last"] = "every"
    set_is_last_backward: bool = False
    weights_dtype: str | None = None
    # parallelize_module
    prepare_module_input: bool = False
    # pipelining
    static_shapes: bool = True
    # context parallel
    rotate_method: Literal["allgather", "alltoall"] | None = None
    load_balance: bool = True
    # expert parallel
    exchange_counts: bool = True
    # the step
    optimizer: Literal["AdamW", "Adam", "SGD"] | None = "AdamW"
    foreach: bool | None = None
    fused: bool | None = None
    clip_foreach: bool | None = None
