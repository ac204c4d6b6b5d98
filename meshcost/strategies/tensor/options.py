"""Tensor parallelism: what a person may ask for on the tensor axis.

Source   Shoeybi et al. 2019 (tensor); Korthikanti et al. 2022 (sequence)
"""

from collections.abc import Iterator
from typing import ClassVar

from meshcost.models import Weight
from meshcost.strategies.base import Strategy
from meshcost.strategies.setting import Setting, common_divisors, one_of, split_size


class TensorParallel(Strategy):
    """Every weight matrix is split; activations are summed (or scattered) between the regions of a block.

    ``sequence_parallel`` splits activations between regions along the sequence. ``vocabulary_parallel`` splits the
    embedding and the head; ``loss_parallel`` computes the loss on split logits instead of collecting them.
    """

    axis: ClassVar[str] = "tensor"

    sequence_parallel: bool = False
    vocabulary_parallel: bool = True
    loss_parallel: bool = True

    def problems(self, setting: Setting) -> Iterator[str]:
        """Say what cannot be done."""
        if self.size == 1:
            return
        if setting.model.attention is None:
            yield (
                f"parallel.tensor.size: {self.size}, but nothing is known of the activations of {setting.model.name}: "
                "only data-parallel strategies can split it. Choose 1."
            )
            return
        yield from self._head_problems(setting)
        yield from self._weight_problems(setting)
        yield from self._token_problems(setting)

    def _head_problems(self, setting: Setting) -> Iterator[str]:
        attention, model = setting.model.attention, setting.model
        assert attention is not None
        heads, kv_heads = model.number(attention.heads), model.number(attention.kv_heads)
        legal = one_of(common_divisors(heads) if kv_heads == 1 else common_divisors(heads, kv_heads))
        if heads % self.size:
            yield f"parallel.tensor.size: {self.size} does not divide {heads} attention heads. {legal}"
        if kv_heads > 1 and kv_heads % self.size:
            yield f"parallel.tensor.size: {self.size} does not divide {kv_heads} key and value heads. {legal}"

    def _weight_problems(self, setting: Setting) -> Iterator[str]:
        model, told = setting.model, set()
        for weight in (*model.before, *(w for kind in model.kinds for w in kind.weights), *model.after):
            if weight.shard is None or (weight.group == "expert" and setting.experts_apart):
                continue
            vocabulary = weight.group in ("embedding", "head")
            if vocabulary and not self.vocabulary_parallel:
                continue
            size = split_size(model, weight)
            if size % self.size and size not in told:
                told.add(size)
                yield self._does_not_divide(weight, size, vocabulary=vocabulary)

    def _does_not_divide(self, weight: Weight, size: int, *, vocabulary: bool) -> str:
        cure = "Set parallel.pad_vocabulary (128 is usual)." if vocabulary else one_of(common_divisors(size))
        what = "rows of the vocabulary" if vocabulary else f"elements of dim {weight.shard} of {weight.name}"
        return f"parallel.tensor.size: {self.size} does not divide the {size} {what}. {cure}"

    def _token_problems(self, setting: Setting) -> Iterator[str]:
        tokens = setting.batch.micro_batch * setting.batch.sequence // setting.size("context")
        if setting.sequence_parallel and tokens % self.size:
            yield (
                f"batch.sequence: sequence_parallel cannot split {tokens} tokens of a micro-batch on one rank over "
                f"{self.size} tensor ranks. Choose a multiple of {self.size * setting.size('context')}."
            )
