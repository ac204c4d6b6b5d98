"""Tensor parallelism: what a person may ask for on the tensor axis.

Source   Shoeybi et al. 2019 (tensor); Korthikanti et al. 2022 (sequence)
"""

from collections.abc import Iterator
from typing import ClassVar

from sympy import Expr

from meshcost import symbols as sym
from meshcost.formula import free_symbols
from meshcost.models import Model, Weight
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
        sizes = {**_head_sizes(setting.model), **_weight_sizes(setting)}
        legal = one_of(common_divisors(*sizes.values())) if sizes else "Choose 1."
        for what, size in sizes.items():
            if size % self.size:
                yield f"parallel.tensor.size: {self.size} does not divide {size} {what}. {legal}"
        if setting.splits_vocabulary and (rows := _vocabulary(setting.model)) % self.size:
            yield (
                f"parallel.tensor.size: {self.size} does not divide the vocabulary of {rows} rows. "
                "Set parallel.pad_vocabulary (128 is usual), or vocabulary_parallel: false."
            )
        yield from self._token_problems(setting)

    def _token_problems(self, setting: Setting) -> Iterator[str]:
        tokens = setting.batch.micro_batch * setting.batch.sequence // setting.size("context")
        if setting.sequence_parallel and tokens % self.size:
            yield (
                f"batch.sequence: sequence_parallel cannot split {tokens} tokens of a micro-batch on one rank over "
                f"{self.size} tensor ranks. Choose a multiple of {self.size * setting.size('context')}."
            )


def _head_sizes(model: Model) -> dict[str, int]:
    """Heads that have to be dealt out whole; a single key and value head is kept by every rank."""
    attention = model.attention
    assert attention is not None
    kv_heads = model.number(attention.kv_heads)
    sizes = {"attention heads": model.number(attention.heads)}
    return sizes if kv_heads == 1 else {**sizes, "key and value heads": kv_heads}


def _weight_sizes(setting: Setting) -> dict[str, int]:
    """Widths that have to be split, in words; heads and the vocabulary are checked for themselves."""
    model, sizes = setting.model, {}
    for weight in model.distinct:
        if weight.shard is None or (weight.group == "expert" and setting.experts_apart):
            continue
        dim = weight.shape[weight.shard]
        if not dim.free_symbols & {sym.a, sym.a_kv, sym.V}:
            sizes[f"({_in_words(dim, weight)})"] = split_size(model, weight)
    return sizes


def _in_words(dim: Expr, weight: Weight) -> str:
    widths = [symbol for symbol in free_symbols(dim) if symbol not in (sym.E, sym.t)]
    return sym.meaning(widths[0]) if len(widths) == 1 else f"dim {weight.shard} of {weight.name}"


def _vocabulary(model: Model) -> int:
    return model.dims.get(sym.V, 0)
