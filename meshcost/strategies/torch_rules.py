"""What PyTorch has nothing of, or refuses: said before a step is predicted under ``framework: torch``, or traced."""

from collections.abc import Iterator

from meshcost.schedule import Schedule
from meshcost.strategies.data.flat_rules import wrapper_problems
from meshcost.strategies.data.options import SHARDS_WEIGHTS
from meshcost.strategies.data.padding import placement_problems
from meshcost.strategies.data.unit_rules import unit_problems
from meshcost.strategies.setting import Setting, divisors, one_of
from meshcost.torch_schedule import HALVED, LISTED, WRITTEN, refused

#: Schedules of torch.distributed.pipelining, by the names that they have here.
SCHEDULES = (*WRITTEN, *LISTED)


#: Families whose plan in Transformers is plain styles on the linears of attention and MLP, or of experts.
PLANNED_FAMILIES = (
    "cohere", "gemma", "gemma2", "gemma3_text", "glm4_moe", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe",
    "smollm3",
)  # fmt: skip


def torch_problems(setting: Setting) -> Iterator[str]:
    """Say what of a layout PyTorch cannot do."""
    parallel = setting.parallel
    if parallel["data"].strategy == "zero2":
        yield "parallel.data.strategy: torch has no zero2. Choose ddp, zero1 or fsdp."
    if parallel["context"].size > 1 and parallel["context"].method == "ulysses":
        yield "parallel.context.method: torch has no ulysses. Choose ring or all_gather."
    if parallel["pipeline"].size > 1:
        yield from _pipeline_problems(setting)
    for axis in parallel:
        if axis not in ("data", "tensor", "pipeline", "context", "expert"):
            yield f"parallel.{axis}: torch knows nothing of it. Leave it out."
    if setting.torch.fused and setting.torch.foreach:
        yield "torch.fused: torch.optim takes fused or foreach, not both. Leave one of them out."
    if setting.torch.tp_plan is not None:
        yield from _plan_problems(setting)
    yield from wrapper_problems(setting)
    yield from unit_problems(setting)
    yield from _reshard_problems(setting)
    yield from placement_problems(setting)


def _plan_problems(setting: Setting) -> Iterator[str]:
    """A plan of Transformers is what the model says: it leaves nothing else to choose."""
    tensor, where = setting.parallel["tensor"], "torch.tp_plan: auto"
    if setting.model.family not in PLANNED_FAMILIES:
        yield (
            f"{where} is not predicted for {setting.model.family}, which Transformers plans in another way or not at all. "
            f"Leave it out; it is for {', '.join(PLANNED_FAMILIES)}."
        )
    if setting.model.tied:
        yield f"{where} is not predicted for a head that shares the weight of the embedding. Leave it out."
    if tensor.size == 1:
        yield f"{where} splits weights over tensor ranks, and there is one. Leave it out, or set parallel.tensor.size."
    if tensor.sequence_parallel:
        yield f"{where} has no sequence parallelism. Write parallel.tensor.sequence_parallel: false."
    if tensor.loss_parallel:
        yield f"{where} collects the logits. Write parallel.tensor.loss_parallel: false."
    if setting.torch.prepare_module_input:
        yield f"{where} has no PrepareModuleInput. Leave torch.prepare_module_input out."
    for axis in sorted(setting.parallel.keys() - {"tensor"}):
        if setting.size(axis) > 1:
            yield f"{where} is predicted for tensor parallelism alone. Leave parallel.{axis} out."


def _pipeline_problems(setting: Setting) -> Iterator[str]:
    pipeline, batch = setting.parallel["pipeline"], setting.batch
    if pipeline.scatter_gather:
        yield "parallel.pipeline.scatter_gather: torch sends activations whole. Leave it out."
    if (name := pipeline.schedule) not in SCHEDULES:
        yield f"parallel.pipeline.schedule: torch has no {name}. Choose {', '.join(SCHEDULES)}."
        return
    count, remainder = divmod(batch.global_batch, batch.micro_batch * setting.batch_ranks)
    schedule = Schedule(name, pipeline.size, pipeline.chunk_count, max(count, 1))
    if not remainder and (why := refused(schedule)) is not None:
        yield f"batch.global_batch: under PyTorch's {name}, {why}."
    yield from _shape_problems(setting)
    data, asked = setting.parallel["data"], setting.torch.reshard_after_forward
    lets_go = data.gathers_again if asked is None else asked is not False
    if setting.framework == "torch" and name in HALVED and data.strategy in SHARDS_WEIGHTS and lets_go:
        # The first half of a backward notes each weight as it is at the time: a shard is no part of what was computed.
        yield (
            f"parallel.pipeline.schedule: {name} computes backward in two halves, and PyTorch 2.13 then loses the "
            "gradients of weights that were let go of after forward. Write reshard_after_forward: false."
        )


def _shape_problems(setting: Setting) -> Iterator[str]:
    """Stages that do not know their shapes compute one micro-batch more, before the first step, to find them out."""
    if setting.framework != "torch" or setting.torch.static_shapes:
        return
    if setting.parallel["data"].strategy not in SHARDS_WEIGHTS and setting.size("data", "context") > 1:
        yield (
            "torch.static_shapes: DistributedDataParallel takes the micro-batch in which stages find out shapes for one of "
            "the step, which is not predicted; under gpipe PyTorch 2.13 stops. Leave it out, or choose fsdp."
        )
    elif setting.torch.step == 0:
        yield (
            "torch.step: without static_shapes, stages compute one micro-batch more in step 0 and send each other pickled "
            "descriptions of it, whose size depends on torch: that is not predicted. Choose 1, or leave it out."
        )


def first_predicted(setting: Setting) -> int:
    """The first step that is predicted: not the one in which stages find out what they send each other."""
    return int(setting.size("pipeline") > 1 and not setting.torch.static_shapes)


def _reshard_problems(setting: Setting) -> Iterator[str]:
    part, data = setting.torch.reshard_after_forward, setting.parallel["data"]
    if part is not None and data.reshard_after_forward not in (None, part):
        yield "torch.reshard_after_forward: parallel.data.reshard_after_forward says otherwise. Leave one of them out."
    elif part not in (None, False) and data.gather == "once":
        yield (
            "torch.reshard_after_forward: parallel.data.gather: once keeps weights after forward. Leave one of them out, "
            "or write false."
        )
    if part is None or isinstance(part, bool) or data.strategy not in SHARDS_WEIGHTS:
        return
    ranks = setting.size("data", "context") // data.replicate
    if ranks % part:
        yield (
            f"torch.reshard_after_forward: {part} does not divide the {ranks} ranks that share weights. "
            + one_of(divisors(ranks))
        )
