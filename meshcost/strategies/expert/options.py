"""Expert parallelism: what a person may ask for on the expert axis.

Source   Lepikhin et al. 2020 (GShard); Fedus et al. 2021 (capacity); DeepSeek-AI 2024, section 3.2.2 (dtypes)
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, ClassVar

from pydantic import Field
from sympy import Symbol

from meshcost.models import Model
from meshcost.strategies.base import Strategy
from meshcost.strategies.setting import Setting, Size, divisors, one_of, split_size
from meshcost.symbols import E, f_cap, f_imb

Factor = Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)]


class ExpertParallel(Strategy):
    """Routed experts live on different ranks; every token travels to its top-k experts and back.

    The ranks are carved out of those of one stage (tensor x context x data), they are not one more factor of the world.
    ``expert_tensor`` ranks split each expert; by default as many as split everything else. With ``capacity_factor`` every
    expert takes equally many tokens of each rank and the buffers are padded to that; without it nothing is dropped, and
    ``imbalance`` says how many times the mean the busiest rank sends (1 is perfectly even routing).
    """

    axis: ClassVar[str] = "expert"

    expert_tensor: Size | None = None
    capacity_factor: Factor | None = None
    imbalance: Annotated[float, Field(ge=1, le=1024, allow_inf_nan=False)] = 1.0

    @property
    def routing(self) -> dict[Symbol, Fraction]:
        """How many times what even routing needs is sent, exactly, under its symbol; nothing if it is even.

        >>> ExpertParallel(size=8, capacity_factor=1.25).routing, ExpertParallel(size=8).routing
        ({f_cap: Fraction(5, 4)}, {})
        """
        if self.capacity_factor is not None:
            return {f_cap: Fraction(str(self.capacity_factor))}
        return {f_imb: Fraction(str(self.imbalance))} if self.imbalance != 1 else {}

    def problems(self, setting: Setting) -> Iterator[str]:
        """Say what cannot be done."""
        asked = bool(self.model_fields_set - {"size"}) or self.size > 1
        experts = routed_experts(setting.model)
        if not experts:
            if asked:
                yield f"parallel.expert: {setting.model.name} has no routed experts. Leave it out."
            return
        if self.capacity_factor is not None and self.imbalance != 1:
            yield "parallel.expert.imbalance: buffers of a given capacity_factor are always even. Leave one of them out."
        if experts % self.size:
            yield (
                f"parallel.expert.size: {self.size} does not divide {experts} routed experts. {one_of(divisors(experts))}"
            )
        yield from self._rank_problems(setting)
        yield from self._tensor_problems(setting)

    def _rank_problems(self, setting: Setting) -> Iterator[str]:
        ranks, taken = setting.ranks_in_stage, self.size * setting.expert_tensor
        replicas = setting.parallel["data"].replicate
        if ranks % taken:
            yield (
                f"parallel.expert.size: {self.size} expert ranks x {setting.expert_tensor} expert_tensor do not divide "
                f"the {ranks} ranks of a stage (tensor x context x data). "
                + one_of([x for x in divisors(ranks) if ranks % (x * setting.expert_tensor) == 0] or [1])
            )
        elif setting.experts_apart and (ranks // taken) % replicas:
            yield (
                f"parallel.data.replicate: {replicas} does not divide the {ranks // taken} ranks that share one expert. "
                + one_of(divisors(ranks // taken))
            )

    def _tensor_problems(self, setting: Setting) -> Iterator[str]:
        tensor, split = setting.size("tensor"), setting.expert_tensor
        if not setting.experts_apart:
            return
        if split > 1 and setting.order[0] != "tensor" and tensor > 1:
            yield f"parallel.order: expert_tensor {split} needs tensor innermost, not {setting.order[0]}."
        if split not in (1, tensor) and tensor > 1 and not setting.sequence_parallel:
            yield (
                f"parallel.expert.expert_tensor: {split} is neither 1 nor the {tensor} tensor ranks, which needs "
                "parallel.tensor.sequence_parallel: true."
            )
        widths = {
            split_size(setting.model, weight)
            for kind in setting.model.kinds
            for weight in kind.weights
            if weight.group == "expert" and weight.shard is not None
        }
        for width in sorted(widths):
            if width % split:
                yield (
                    f"parallel.expert.expert_tensor: {split} does not divide the expert width of {width} elements. "
                    + one_of(divisors(width))
                )
        tokens = setting.batch.micro_batch * setting.batch.sequence // setting.size("context")
        if tokens % tensor and not setting.sequence_parallel and split == 1:
            yield (
                f"batch.sequence: {tokens} tokens of a micro-batch on one rank cannot be dealt out to {tensor} tensor "
                f"ranks, each of which has its own experts. Choose a multiple of {tensor * setting.size('context')}."
            )


def routed_experts(model: Model) -> int:
    """Routed experts of one block; 0 for a dense model."""
    return model.dims.get(E, 0) if any(kind.has_experts for kind in model.kinds) else 0
