"""Context parallelism: what a person may ask for on the context axis.

Source   Liu et al. 2023 (ring); Grattafiori et al. 2024, section 3.3.2 (all-gather); Jacobs et al. 2023 (Ulysses)
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from meshcost.strategies.base import Strategy
from meshcost.strategies.setting import Setting, common_divisors, divisors, one_of


class ContextParallel(Strategy):
    """Every rank holds a part of each sequence; attention brings the parts together.

    ``method``: ``ring`` passes keys and values around, ``all_gather`` collects them, ``ulysses`` trades sequence for
    heads. ``replicate_kv_heads`` lets Ulysses copy key and value heads where there are fewer of them than ranks.
    """

    axis: ClassVar[str] = "context"

    method: Literal["ring", "all_gather", "ulysses"] = "ring"
    replicate_kv_heads: bool = False

    def problems(self, setting: Setting) -> Iterator[str]:
        """Say what cannot be done."""
        if self.replicate_kv_heads and self.method != "ulysses":
            yield (
                f"parallel.context.replicate_kv_heads: {self.method} keeps all heads on every rank. Leave it out, or choose "
                "method: ulysses."
            )
        if self.size == 1:
            return
        sequence = setting.batch.sequence
        if sequence % self.size:
            yield (
                f"parallel.context.size: {self.size} does not divide the sequence of {sequence} tokens. "
                + one_of(divisors(sequence))
            )
        if setting.model.attention is None:
            yield (
                f"parallel.context.size: {self.size}, but nothing is known of the activations of {setting.model.name}: "
                "only data-parallel strategies can split it. Choose 1."
            )
        elif self.method == "ulysses":
            yield from self._ulysses_problems(setting)

    def _ulysses_problems(self, setting: Setting) -> Iterator[str]:
        attention, model, tensor = setting.model.attention, setting.model, setting.size("tensor")
        assert attention is not None
        heads, kv_heads = model.number(attention.heads), model.number(attention.kv_heads)
        own, own_kv = max(heads // tensor, 1), max(kv_heads // tensor, 1)
        if own % self.size:
            yield (
                f"parallel.context.size: ulysses cannot split {own} attention heads of a rank over {self.size} ranks. "
                + one_of(divisors(own))
            )
        elif own_kv % self.size and not self.replicate_kv_heads:
            yield (
                f"parallel.context.size: ulysses cannot split {own_kv} key and value heads of a rank over {self.size} "
                f"ranks. {one_of(common_divisors(own, own_kv))} Or set parallel.context.replicate_kv_heads: true."
            )
        elif self.replicate_kv_heads and own_kv % self.size and self.size % own_kv:
            yield (
                f"parallel.context.size: {own_kv} key and value heads of a rank cannot be copied evenly to {self.size} "
                f"ranks. {one_of([x for x in divisors(own) if x % own_kv == 0])}"
            )
