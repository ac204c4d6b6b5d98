"""Pipeline parallelism: what a person may ask for on the pipeline axis.

Source   Huang et al. 2019 (GPipe); Narayanan et al. 2021 (1F1B, interleaved); Qi et al. 2023 and 2024 (zero bubble,
         V-shaped); DeepSeek-AI 2024, section 3.2.1 (DualPipe)
"""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from meshcost.schedule import Schedule
from meshcost.strategies.base import Strategy
from meshcost.strategies.setting import Setting, Size, divisors, one_of


def _plain_name(value: Any) -> Any:
    """Accept a schedule as frameworks write it: Interleaved1F1B, ZB-H1."""
    if not isinstance(value, str):
        return value
    name = value.lower().replace("-", "_")
    return {"interleaved": "interleaved_1f1b", "interleaved1f1b": "interleaved_1f1b"}.get(name, name)


ScheduleName = Annotated[
    Literal[
        "gpipe",
        "1f1b",
        "interleaved_1f1b",
        "zb_h1",
        "zb_h2",
        "interleaved_zb",
        "zbv",
        "dualpipev",
        "dualpipe",
    ],
    BeforeValidator(_plain_name),
]
_SEVERAL_CHUNKS = ("interleaved_1f1b", "interleaved_zb")
_TWO_CHUNKS = ("zbv", "dualpipev")

#: No file may ask for more virtual stages than this; each is looked at on its own.
MOST_STAGES = 2**13

BlockCount = Annotated[int, Field(strict=True, ge=0, le=100_000)]


class PipelineParallel(Strategy):
    """Every stage holds some of the blocks; activations travel forward, their gradients backward.

    ``chunks`` is the number of model chunks on each rank (interleaved schedules). ``layers_per_stage`` deals out blocks
    unevenly: one number for each virtual stage, in model order. ``scatter_gather`` sends 1 / t of an activation that
    all tensor ranks hold, and collects it again on the other side.
    """

    axis: ClassVar[str] = "pipeline"

    schedule: ScheduleName = "1f1b"
    chunks: Size | None = None
    layers_per_stage: tuple[BlockCount, ...] | None = None
    scatter_gather: bool = False

    @property
    def chunk_count(self) -> int:
        """Model chunks on one rank."""
        default = 2 if self.schedule in (*_SEVERAL_CHUNKS, *_TWO_CHUNKS) else 1
        return self.chunks if self.chunks is not None else default

    @property
    def virtual_stages(self) -> int:
        """Model chunks in all."""
        return Schedule(self.schedule, self.size, self.chunk_count, 1).virtual_stages

    def layers(self, total: int) -> tuple[int, ...]:
        """Blocks of each virtual stage."""
        if self.layers_per_stage is not None:
            return self.layers_per_stage
        return (total // self.virtual_stages,) * self.virtual_stages

    def problems(self, setting: Setting) -> Iterator[str]:
        """Say what cannot be done."""
        if self.size > 1 and setting.model.attention is None:
            yield (
                f"parallel.pipeline.size: {self.size}, but nothing is known of the activations of {setting.model.name}: "
                "only data-parallel strategies can split it. Choose 1."
            )
        yield from self._chunk_problems()
        yield from self._layer_problems(setting)
        if setting.framework != "torch" or self.size == 1:
            yield from self._micro_batch_problems(setting)
        if self.scatter_gather and setting.sequence_parallel:
            yield (
                "parallel.pipeline.scatter_gather: activations are split already with sequence_parallel. Leave it out."
            )

    def _chunk_problems(self) -> Iterator[str]:
        if self.chunks is not None and self.schedule in _TWO_CHUNKS and self.chunks != 2:
            yield f"parallel.pipeline.chunks: {self.schedule} has 2 chunks on each rank, not {self.chunks}. Leave it out."
        elif self.chunks not in (None, 1) and self.schedule not in (*_SEVERAL_CHUNKS, *_TWO_CHUNKS):
            yield (
                f"parallel.pipeline.chunks: {self.schedule} has 1 chunk on each rank, not {self.chunks}. "
                f"Choose schedule {' or '.join(_SEVERAL_CHUNKS)}, or leave it out."
            )

    def _layer_problems(self, setting: Setting) -> Iterator[str]:
        total, stages = setting.model.layers, self.virtual_stages
        if stages > MOST_STAGES:
            yield f"parallel.pipeline.size: {stages} stages are more than {MOST_STAGES}, the most that are computed."
            return
        given = self.layers_per_stage
        if given is not None and len(given) != stages:
            yield f"parallel.pipeline.layers_per_stage: {len(given)} numbers for {stages} stages. Write {stages} numbers."
        elif given is not None and sum(given) != total:
            yield f"parallel.pipeline.layers_per_stage: they add up to {sum(given)}, but the model has {total} blocks."
        elif given is None and total % stages:
            yield (
                f"parallel.pipeline.size: {total} blocks do not divide into {stages} stages. "
                f"{one_of(divisors(total))} Or deal them out: layers_per_stage: {_suggest(total, stages)}."
            )

    def _micro_batch_problems(self, setting: Setting) -> Iterator[str]:
        batch, ranks = setting.batch, setting.batch_ranks
        count, remainder = divmod(batch.global_batch, batch.micro_batch * ranks)
        if remainder:
            return
        if self.schedule in _SEVERAL_CHUNKS and self.chunk_count > 1 and count % self.size:
            yield (
                f"batch.global_batch: {self.schedule} needs a multiple of {self.size} micro-batches, not {count}. "
                f"Choose a multiple of {self.size * batch.micro_batch * ranks}."
            )
        if self.schedule == "dualpipe" and (count % 2 or self.size % 2):
            yield (
                f"parallel.pipeline.schedule: dualpipe needs an even number of stages ({self.size}) and of micro-batches "
                f"({count}), since it feeds both ends."
            )


def _suggest(total: int, stages: int) -> str:
    """Deal out as evenly as possible; the first and last stages, which have the embedding and the head, get fewer."""
    if stages > 64:
        return f"[...] with {stages} numbers"
    size, larger = divmod(total, stages)
    first = (stages - larger) // 2
    return str([size + (first <= i < first + larger) for i in range(stages)])
