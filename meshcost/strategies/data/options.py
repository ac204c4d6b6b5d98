"""Data parallelism: what a person may ask for on the data axis.

Calls    see textbook.py: ddp, zero1, zero2, zero3, fsdp (with ``replicate``: HSDP)
Source   Li et al. 2020 (DDP); Rajbhandari et al. 2020 (ZeRO); Zhao et al. 2023 (FSDP, hybrid sharding)
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from meshcost.strategies.base import Strategy
from meshcost.strategies.setting import Setting, Size, divisors, one_of

When = Literal["every_micro_batch", "last_micro_batch"]

#: Strategies that keep weights sharded, and those that keep at least gradients sharded.
SHARDS_WEIGHTS = ("zero3", "fsdp")
SHARDS_GRADIENTS = ("zero2", *SHARDS_WEIGHTS)


class DataParallel(Strategy):
    """Every rank trains on its own part of the batch; the strategies differ in what they shard.

    ``size`` counts all data ranks; ``replicate`` of them hold whole copies and shard among the rest (HSDP, fsdp and zero3
    only). ``gradient_sync`` says when gradients are reduced under gradient accumulation; by default ddp and zero1 reduce
    after the last micro-batch, zero2, zero3 and fsdp after every one, since they have nowhere to keep whole gradients.
    ``reshard_after_forward: false`` keeps gathered weights until their backward. ``gather: once`` keeps them for the
    whole step.
    """

    axis: ClassVar[str] = "data"
    splits_batch: ClassVar[bool] = True

    strategy: Literal["ddp", "zero1", "zero2", "zero3", "fsdp"] = "ddp"
    size: Annotated[Size, Field(description="all data ranks, whole copies (replicate) included")] = 1
    replicate: Annotated[
        Size, Field(description="HSDP: so many whole copies, each sharded over size / replicate ranks")
    ] = 1
    gradient_sync: When | None = None
    reshard_after_forward: bool | None = None
    gather: Literal["every_micro_batch", "once"] | None = None

    @property
    def syncs_every_micro_batch(self) -> bool:
        """Whether gradients are reduced after every micro-batch."""
        default = "every_micro_batch" if self.strategy in SHARDS_GRADIENTS else "last_micro_batch"
        return (self.gradient_sync or default) == "every_micro_batch"

    @property
    def shards_gradients(self) -> bool:
        """Whether a rank keeps only its shard of the gradients."""
        return self.strategy in SHARDS_GRADIENTS

    @property
    def gathers_again(self) -> bool:
        """Whether weights are gathered once more for the backward pass."""
        return self.reshard_after_forward is not False and self.gather != "once"

    def warnings(self) -> Iterator[str]:
        """Say what is hardly meant: copies among which nothing is left to shard."""
        if self.size == self.replicate > 1:
            yield (
                f"parallel.data: size {self.size} counts all data ranks and each of them holds a whole copy (replicate: "
                f"{self.replicate}), so nothing is sharded. For {self.replicate} copies in 2 shards each: "
                f"size: {2 * self.size}."
            )

    def problems(self, setting: Setting) -> Iterator[str]:
        """Say what cannot be done."""
        shards = self.strategy in SHARDS_WEIGHTS
        if self.size % self.replicate:
            yield (
                f"parallel.data.replicate: {self.replicate} does not divide the {self.size} data ranks. "
                + one_of(divisors(self.size))
            )
        for name in ("reshard_after_forward", "gather"):
            if getattr(self, name) is not None and not shards:
                yield f"parallel.data.{name}: {self.strategy} does not shard weights. Leave it out, or choose zero3 or fsdp."
        if self.gather == "once" and self.reshard_after_forward:
            yield (
                "parallel.data.reshard_after_forward: gather: once keeps weights after their forward pass. Leave one of "
                "them out."
            )
        if self.replicate > 1 and not shards:
            yield f"parallel.data.replicate: {self.strategy} does not shard weights. Leave it out, or choose zero3 or fsdp."
        yield from self._batch_problems(setting)

    def _batch_problems(self, setting: Setting) -> Iterator[str]:
        batch, ranks = setting.batch, setting.batch_ranks
        if batch.global_batch % (batch.micro_batch * ranks):
            yield (
                f"batch.global_batch: {batch.global_batch} is not a multiple of {batch.micro_batch * ranks} "
                f"(micro_batch {batch.micro_batch} x {ranks} data ranks). "
                f"Choose {_nearest(batch.global_batch, batch.micro_batch * ranks)}."
            )


def syncs_every(setting: Setting) -> bool:
    """Whether PyTorch reduces gradients after every micro-batch: what its own option says, or else the layout."""
    asked = setting.torch.set_requires_gradient_sync
    return setting.parallel["data"].syncs_every_micro_batch if asked is None else asked == "every"


def _nearest(number: int, step: int) -> str:
    below, above = number // step * step, -(-number // step) * step
    return f"{below} or {above}" if below else f"{above}"
