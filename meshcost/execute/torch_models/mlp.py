"""MLPs with a gate, and routed experts."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

#: Slots of some experts (experts, capacity, width) -> what these made of them, in the same places.
Work = Callable[[torch.Tensor], torch.Tensor]

#: Brings slots of all experts to where these are, lets them work, and brings back what they made.
Exchange = Callable[[Work, torch.Tensor], torch.Tensor]


def feed_forward(linears: Iterable[nn.Module], x: torch.Tensor) -> torch.Tensor:
    """Up and down: with a gate where there is a linear for it or one is twice as wide, else gelu(up(x)) alone."""
    *into, down = linears
    made = [linear(x) for linear in into]
    if len(made) == 1 and made[0].shape[-1] == 2 * getattr(down, "in_features", 0):
        made = list(made[0].chunk(2, dim=-1))
    inner = functional.silu(made[0]) * made[1] if len(made) == 2 else functional.gelu(made[0])
    result: torch.Tensor = down(inner)
    return result


class Mlp(nn.Module):
    """The linears of an MLP as they are registered: gate, up and down (SwiGLU), or up and down."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Work on (..., width)."""
        return feed_forward(self.children(), x)


#: Names of the weights that tokens enter experts by.
ENTRANCES = ("gate_up_proj", "gate_proj", "up_proj")


def stay(experts: Work, slots: torch.Tensor) -> torch.Tensor:
    """All experts are here."""
    return experts(slots)


class Experts(nn.Module):
    """Experts stored together: ``gate_up_proj`` (experts, 2 f, h) and ``down_proj`` (experts, h, f).

    ``gate_proj`` and ``up_proj`` (experts, f, h) may stand in place of the first.
    """

    down_proj: nn.Parameter

    def __init__(self) -> None:
        """Let nothing travel; weights are registered from outside."""
        super().__init__()
        self.exchange: Exchange = stay

    def forward(self, slots: torch.Tensor) -> torch.Tensor:
        """Let each expert work on its slots, (experts, capacity, width), wherever these have to travel."""
        return self.exchange(self.work, slots)

    def work(self, slots: torch.Tensor) -> torch.Tensor:
        """Let each expert that is held here work on its slots: (experts held here, capacity, width)."""
        # By name: FullyShardedDataParallel keeps weights as tensors that are no parameters.
        into = [_local(getattr(self, name)) for name in ENTRANCES if hasattr(self, name)]
        down = _local(self.down_proj)
        made = [torch.bmm(slots, weight.transpose(1, 2)) for weight in into]
        gate, value = made if len(made) == 2 else made[0].chunk(2, dim=-1)
        return torch.bmm(functional.silu(gate) * value, down.transpose(1, 2))


def _local(weight: torch.Tensor) -> torch.Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


class Routed(nn.Module):
    """Routed experts, with shared ones where there are any.

    Tokens are dealt out to experts in turn and not by score, so that every expert gets equally many and no shape depends on
    data; scores weigh the results, so the router learns all the same.
    """

    gate: nn.Module
    experts: Experts

    def __init__(self, top: int, count: int) -> None:
        """Take how many experts each token is sent to, and how many there are."""
        super().__init__()
        self.top, self.count = top, count
        self.exchange: Exchange = stay

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Work on (batch, sequence, width)."""
        tokens = x.flatten(0, -2)
        number = tokens.shape[0]
        shared: Any = 0
        # Where it has a gate of its own, the shared expert works first.
        if "shared_expert" in self._modules:
            shared = self.get_submodule("shared_expert")(tokens)
        capacity = -(-number * self.top // self.count)
        scores = self.gate(tokens).softmax(dim=-1)[:, : self.top]
        copies = tokens.repeat_interleave(self.top, 0)
        padded = functional.pad(copies, (0, 0, 0, capacity * self.count - number * self.top))
        made = self.exchange(self.experts, padded.unflatten(0, (capacity, self.count)).transpose(0, 1))
        back = made.transpose(0, 1).flatten(0, 1)[: number * self.top].unflatten(0, (number, self.top))
        back = (back * scores.unsqueeze(-1).to(back.dtype)).sum(1)
        if "shared_experts" in self._modules:
            shared = self.get_submodule("shared_experts")(tokens)
        if "shared_expert_gate" in self._modules:
            shared = shared * self.get_submodule("shared_expert_gate")(tokens).sigmoid()
        made = back + shared
        return made.view(x.shape)
