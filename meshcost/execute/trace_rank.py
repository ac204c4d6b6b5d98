"""What one rank of a traced job does: build its part of the model, distribute it with torch's own code, run steps."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from meshcost.execute.record import Recorder, record
from meshcost.execute.recording import Recording
from meshcost.execute.torch_models import CausalModel, build
from meshcost.execute.trace_context import attend_around
from meshcost.execute.trace_data import (
    TORCH_DTYPES,
    checkpoint_blocks,
    replicate,
    shard,
    shards,
    stored_dtype,
)
from meshcost.execute.trace_expert import spread_experts
from meshcost.execute.trace_flat import wrap_flat
from meshcost.execute.trace_pipeline import Pipeline
from meshcost.execute.trace_step import accumulate, finish, make_optimizer
from meshcost.execute.trace_tensor import split
from meshcost.execute.trace_world import Axes, FakeMessages, device_axes, fake_world
from meshcost.job import Job
from meshcost.strategies.torch_options import TorchOptions

#: Weights times tokens that are computed at most with real numbers, and what else bounds time and memory then.
MOST_COMPUTED, FEWEST_TOKENS, MOST_SEQUENCE = 4 * 10**9, 256, 1024


def trace_fake(job: Job, rank: int, steps: int, options: TorchOptions) -> Recording:
    """Play one rank on the fake group."""
    with fake_world(rank, job.world_size), ExitStack() as stack:
        axes = device_axes(job.mesh, kept_axes(job))
        with torch.device("meta"):
            parts = build_parts(job, rank, options)
        computes = _is_small(parts, job, options, steps)
        # On meta: a fake tensor for each of thousands of shards would take minutes.
        distribute(parts, job, options, axes)
        if computes:
            fill(parts)
        else:
            fake = FakeTensorMode(allow_non_fake_inputs=True)
            with fake:
                for part in parts:
                    _allocate(part)
            # Where ranks tell each other numbers, those have to be real; weights, and what is computed with them, are
            # fake all the same.
            if not _reads_messages(job, options, axes):
                stack.enter_context(fake)
        messages = stack.enter_context(FakeMessages(static_shapes=options.static_shapes))
        recorder = stack.enter_context(record(job.mesh))
        step = training_step(parts, job, options, axes, messages)
        for _ in range(steps):
            step()
        return finished(recorder, job)


def _is_small(parts: Sequence[CausalModel], job: Job, options: TorchOptions, steps: int) -> bool:
    """Whether to compute with real numbers: on a small model that is faster than to pretend, operation by operation.

    Not where a type is slow on a CPU, nor for experts, whose tokens would go where the numbers send them.
    """
    types = {stored_dtype(job, options), TORCH_DTYPES[job.precision.dtype("weights")]}
    if types != {torch.float32} or any(kind.has_experts for kind in job.setting.model.kinds):
        return False
    weights = sum(weight.numel() for part in parts for weight in part.parameters())
    micro_batches = job.program.schedule.micro_batches
    tokens = steps * micro_batches * job.batch.micro_batch * job.batch.sequence
    return job.batch.sequence <= MOST_SEQUENCE and weights * max(tokens, FEWEST_TOKENS) <= MOST_COMPUTED


def fill(parts: Sequence[nn.Module]) -> None:
    """Give weights some content, on the CPU."""
    for part in parts:
        _allocate(part)
        with torch.no_grad():
            for weight in part.parameters():
                weight.normal_(std=0.02)


def _allocate(part: nn.Module) -> None:
    """Move weights from meta to the CPU; two names of one weight stay two names of one."""
    names: dict[int, list[str]] = {}
    for name, weight in part.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    part.to_empty(device="cpu")
    for first, *others in names.values():
        for name in others:
            owner, _, leaf = name.rpartition(".")
            part.get_submodule(owner).register_parameter(leaf, part.get_parameter(first))


def _reads_messages(job: Job, options: TorchOptions, axes: Axes) -> bool:
    """Whether torch looks at what ranks tell each other: buckets of DistributedDataParallel, shapes of stages."""
    replicates = (
        not shards(job)
        and not job.setting.wraps_flat
        and axes.sub("data", "context", "replicate") is not None
    )
    return replicates or (job.parallel.pipeline.size > 1 and not options.static_shapes)


def kept_axes(job: Job) -> tuple[str, ...]:
    """Axes that torch has to be given even where they have one rank."""
    return ("data",) if shards(job) or job.setting.wraps_flat else ()


def finished(recorder: Recorder, job: Job) -> Recording:
    """Add to a recording what was recorded."""
    recording = recorder.recording
    return replace(recording, about={**recording.about, "model": job.setting.model.name})


def build_parts(job: Job, rank: int, options: TorchOptions) -> list[CausalModel]:
    """Build the model chunks of one rank, on the current default device."""
    model, schedule = job.setting.model, job.program.schedule
    sizes = job.parallel.pipeline.layers(model.layers)
    parts = []
    for stage in schedule.hosted(job.mesh.stage(rank)):
        start = sum(sizes[:stage])
        with default_dtype(stored_dtype(job, options)):
            parts.append(
                build(
                    model,
                    layers=range(start, start + sizes[stage]),
                    first=stage == 0,
                    last=stage == schedule.virtual_stages - 1,
                )
            )
    return parts


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make new weights in a data type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def distribute(parts: Sequence[CausalModel], job: Job, options: TorchOptions, axes: Axes) -> None:
    """Apply what changes the weights, in torch's order: tensor, experts, context, checkpointing, fully_shard."""
    for part in parts:
        tensor = axes.sub("tensor")
        if tensor is not None:
            split(part, job, options, tensor)
        spread_experts(part, options, axes)
        attend_around(part, job, options, axes)
        if job.recompute == "full":
            checkpoint_blocks(part, options)
        if shards(job):
            shard(part, job, options, axes)


def training_step(
    parts: Sequence[CausalModel],
    job: Job,
    options: TorchOptions,
    axes: Axes,
    messages: FakeMessages | None = None,
) -> Callable[[], None]:
    """Wrap the model in what is no change of its weights, and return what runs a step; a real group has no messages."""
    modules: list[nn.Module] = list(parts)
    if job.setting.wraps_flat:
        modules = [wrap_flat(part, job, options, axes) for part in parts]
    elif not shards(job):
        modules = [replicate(module, options, axes, fake=messages is not None) for module in modules]
    optimizer = make_optimizer(modules, job, options, axes)
    is_split = job.parallel.pipeline.size > 1
    pipeline = Pipeline(modules, job, options, axes, messages) if is_split else None

    def step() -> None:
        loss = pipeline.step() if pipeline is not None else accumulate(modules[0], job, options)
        finish(modules, optimizer, loss, job, options, axes)

    return step
