"""Pipeline parallelism as PyTorch does it: stages and schedules of torch.distributed.pipelining."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._utils import extract_tensor_metas

from meshcost import symbols as sym
from meshcost.execute.trace_data import TORCH_DTYPES, prepare_micro_batch, shards
from meshcost.execute.trace_step import loss_context, loss_of, tokens
from meshcost.execute.trace_tensor import splits_loss
from meshcost.execute.trace_world import Axes, FakeMessages
from meshcost.job import Job
from meshcost.strategies.torch_options import TorchOptions

#: Our schedules, and the class of torch that runs each.
SCHEDULES: Mapping[str, str] = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved_1f1b": "ScheduleInterleaved1F1B",
    "interleaved_zb": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}


#: What stages tell each other of their shapes is private to torch, so it is looked up when it is needed.
_STAGE = "torch.distributed.pipelining.stage"


class _LoneStage(PipelineStage):
    """A stage whose neighbours do not exist: what they would say of their shapes is made up here, and then received."""

    messages: FakeMessages
    activation: torch.Tensor

    def _recv_meta(self, src_stage: int) -> Any:
        told: Any = import_module(_STAGE)
        (meta,) = extract_tensor_metas((self.activation,)) or ()
        if src_stage < self.stage_index:
            said: Any = told._StageForwardMeta(forward_metas=(meta,))
        else:
            said = told._StageBackwardMeta(backward_metas=told._derive_grad_metas((meta,)))
        content, size = dist.distributed_c10d._object_to_tensor(said, torch.device("cpu"), self.group)
        self.messages.pending.extend((size.view(1), content))
        return super()._recv_meta(src_stage)


class Pipeline:
    """The stages of one rank and the schedule that runs them."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        job: Job,
        options: TorchOptions,
        axes: Axes,
        messages: FakeMessages | None = None,
    ) -> None:
        """Make a stage of each part. ``messages`` is what delivers on the fake group."""
        self.job, self.options, self.parts = job, options, parts
        group = axes.group("pipeline")
        assert group is not None
        schedule = job.program.schedule
        self.numbers = schedule.hosted(group.rank())
        self.last = schedule.virtual_stages - 1
        made = PipelineStage if messages is None else _LoneStage
        stages = [
            made(
                part,
                number,
                schedule.virtual_stages,
                torch.device("cpu"),
                group=group,
                **self._shapes(number),
            )
            for part, number in zip(parts, self.numbers, strict=True)
        ]
        for stage in stages:
            if isinstance(stage, _LoneStage) and messages is not None:
                stage.messages, stage.activation = messages, self._activation()
        kind = getattr(schedules, SCHEDULES[job.parallel.pipeline.schedule])
        is_single = issubclass(kind, schedules.PipelineScheduleSingle)
        self.schedule = kind(stages[0] if is_single else stages, job.micro_batches, loss_fn=loss_of)

    def _shapes(self, number: int) -> dict[str, Any]:
        """What a stage takes and gives for one micro-batch; nothing where torch has to find out."""
        if not self.options.static_shapes:
            return {}
        activation = self._activation
        logits = tokens(self.job, 1).unsqueeze(-1).expand(-1, -1, self.job.setting.model.dims[sym.V])
        given = tokens(self.job, 1) if number == 0 else activation()
        made = torch.empty_like(logits, dtype=self._dtype) if number == self.last else activation()
        return {"input_args": given, "output_args": made.requires_grad_()}

    @property
    def _dtype(self) -> torch.dtype:
        """Activations have the data type in which weights are used."""
        return TORCH_DTYPES[self.job.precision.dtype("weights")]

    def _activation(self) -> torch.Tensor:
        batch, parallel = self.job.batch, self.job.parallel
        split = parallel.tensor.size if self.job.setting.sequence_parallel else 1
        length = batch.sequence // parallel.context.size // split
        shape = (batch.micro_batch, length, self.job.setting.model.dims[sym.h])
        return torch.empty(shape, dtype=self._dtype, requires_grad=True)

    def step(self) -> torch.Tensor | None:
        """Run all micro-batches; returns the mean loss where the last stage is."""
        job = self.job
        if shards(job):
            # Stages reduce gradients once, whatever the micro-batch.
            prepare_micro_batch(self.parts, job, self.options, is_last=True)
        inputs = (tokens(job, job.micro_batches),) if 0 in self.numbers else ()
        losses: list[torch.Tensor] = []
        ends = self.last in self.numbers
        with loss_context(job) if splits_loss(job) else torch.enable_grad():
            if ends:
                self.schedule.step(*inputs, target=tokens(job, job.micro_batches), losses=losses)
            else:
                self.schedule.step(*inputs)
        return torch.stack([loss.detach() for loss in losses]).mean() if losses else None
