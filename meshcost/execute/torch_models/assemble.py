"""Modules from named weights: every weight of a description becomes a parameter of that name, shape and order."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from meshcost.models import Model, Weight


@dataclass(frozen=True, slots=True)
class Shaped:
    """A weight with numbers for its dims, named relative to the module that is put together."""

    name: str
    shape: tuple[int, ...]
    weight: Weight


class AdaptedLinear(nn.Linear):
    """A linear that may hold a low-rank adapter: two thin linears beside it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Work on (..., in) and give (..., out)."""
        y = super().forward(x)
        if "lora_A" not in self._modules:
            return y
        down, up = (self.get_submodule(f"lora_{side}.default") for side in "AB")
        made: torch.Tensor = y + up(down(x))
        return made


class TransposedLinear(nn.Module):
    """A linear whose weight is stored (in, out), with a bias."""

    def __init__(self, into: int, out: int) -> None:
        """Make room for the weights."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(into, out))
        self.bias = nn.Parameter(torch.empty(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Work on (..., in) and give (..., out)."""
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)


def shaped(model: Model, weights: Iterable[Weight], drop: str = "") -> list[Shaped]:
    """Give the dims of weights their numbers, and drop a prefix of their names."""
    return [
        Shaped(weight.name.removeprefix(drop), tuple(map(model.number, weight.shape)), weight)
        for weight in weights
    ]


def assemble(
    root: nn.Module, weights: Iterable[Shaped], containers: Mapping[str, Callable[[], nn.Module]]
) -> None:
    """Register weights in ``root``: linears, embeddings, norms and bare parameters, in order.

    ``containers`` says what to make for a path that is not a leaf; by default an empty module.
    """
    weights = list(weights)
    names = {item.name for item in weights}
    for item in weights:
        path, _, leaf = item.name.rpartition(".")
        if leaf == "bias":
            continue
        if leaf == "weight":
            owner, _, name = path.rpartition(".")
            inside(root, owner, containers).add_module(name, _leaf(item, f"{path}.bias" in names))
        else:
            parameter = nn.Parameter(torch.empty(item.shape))
            inside(root, path, containers).register_parameter(leaf, parameter)


def _leaf(item: Shaped, bias: bool) -> nn.Module:
    if item.weight.group in ("embedding", "position"):
        return nn.Embedding(item.shape[0], item.shape[1])
    if item.weight.group == "norm" or len(item.shape) == 1:
        return nn.LayerNorm(item.shape) if bias else nn.RMSNorm(item.shape)
    if item.weight.transposed:
        return TransposedLinear(item.shape[0], item.shape[1])
    return AdaptedLinear(item.shape[1], item.shape[0], bias=bias)


def inside(root: nn.Module, path: str, containers: Mapping[str, Callable[[], nn.Module]]) -> nn.Module:
    """Find the module at a path, making the ones on the way to it."""
    place, walked = root, ""
    for name in filter(None, path.split(".")):
        walked = f"{walked}.{name}".strip(".")
        if name not in place._modules:
            place.add_module(name, containers.get(walked, nn.Module)())
        place = place.get_submodule(name)
    return place
