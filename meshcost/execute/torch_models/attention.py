"""Attention: grouped queries, and the latent kind; rotary positions, a causal mask."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

#: Queries, keys and values as (batch, heads, sequence, size of a head) -> the same shape as the queries.
Core = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attend to what came before; a key head serves several query heads where there are fewer of them."""
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = (x.repeat_interleave(shared, dim=1) for x in (key, value))
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Turn pairs of elements of each head by an angle that grows with the position (Su et al. 2021)."""
    half = x.shape[-1] // 2
    speed = 10_000.0 ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * speed
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half : 2 * half]
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return turned if x.shape[-1] == 2 * half else torch.cat((turned, x[..., 2 * half :]), dim=-1)


#: What a projection of queries, keys and values together is called, and that of what attention gives.
_FUSED = ("c_attn", "qkv_proj", "query_key_value")
_OUT = ("o_proj", "out_proj", "c_proj", "dense")


class Attention(nn.Module):
    """Grouped-query attention; works on as many heads as its projections give it."""

    def __init__(self, head_size: int, heads: int, kv_heads: int) -> None:
        """Take the size of one head and their numbers; projections are registered from outside."""
        super().__init__()
        self.head_size, self.shares = head_size, (heads, kv_heads, kv_heads)
        self.core: Core = causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend over (batch, sequence, width)."""
        query, key, value = (tensor.transpose(1, 2) for tensor in self._projected(x))
        made = self.core(rotate(query), rotate(key), value)
        result: torch.Tensor = self._one_of(_OUT)(made.transpose(1, 2).flatten(2))
        return result

    def _projected(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Queries, keys and values as (batch, sequence, heads, size), normalised where the family does."""
        if "q_proj" in self._modules:
            made = (self.get_submodule(f"{which}_proj")(x) for which in "qkv")
            # Phi projects all three before it normalises; gradients arrive in the opposite order.
            parts = tuple(made) if "q_layernorm" in self._modules else made
        else:
            whole = self._one_of(_FUSED)(x)
            parts = whole.split([number * self.head_size for number in self.shares], dim=-1)
        return [self._heads(which, part) for which, part in zip("qkv", parts, strict=True)]

    def _heads(self, which: str, flat: torch.Tensor) -> torch.Tensor:
        """Split into heads, and normalise each, or all of them together."""
        norm = self._modules.get(f"{which}_norm", self._modules.get(f"{which}_layernorm"))
        if norm is None:
            return flat.unflatten(-1, (-1, self.head_size))
        if norm.weight.shape == flat.shape[-1:] != (self.head_size,):
            wide: torch.Tensor = norm(flat).unflatten(-1, (-1, self.head_size))
            return wide
        single: torch.Tensor = norm(flat.unflatten(-1, (-1, self.head_size)))
        return single

    def _one_of(self, names: tuple[str, ...]) -> nn.Module:
        return next(module for name, module in self.named_children() if name in names)


class LatentAttention(nn.Module):
    """Multi-head latent attention: keys and values come from one short vector (DeepSeek-AI 2024, section 2.1)."""

    kv_a_proj_with_mqa: nn.Module
    kv_a_layernorm: nn.Module
    kv_b_proj: nn.Module
    o_proj: nn.Module

    def __init__(self, plain: int, rotary: int, value: int, latent: int) -> None:
        """Take the sizes of a head, without and with rotation and of its value, and of the latent."""
        super().__init__()
        self.plain, self.rotary, self.value, self.latent = plain, rotary, value, latent
        self.core: Core = causal

    def _queries(self, x: torch.Tensor) -> Any:
        if "q_proj" in self._modules:
            return self.get_submodule("q_proj")(x)
        low = self.get_submodule("q_a_layernorm")(self.get_submodule("q_a_proj")(x))
        return self.get_submodule("q_b_proj")(low)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend over (batch, sequence, width)."""
        query = self._queries(x).unflatten(-1, (-1, self.plain + self.rotary)).transpose(1, 2)
        latent, shared = self.kv_a_proj_with_mqa(x).split((self.latent, self.rotary), dim=-1)
        keys = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (-1, self.plain + self.value))
        key, value = keys.transpose(1, 2).split((self.plain, self.value), dim=-1)
        turned = rotate(shared.unsqueeze(1)).expand(-1, key.shape[1], -1, -1)
        query = torch.cat((query[..., : self.plain], rotate(query[..., self.plain :])), dim=-1)
        # Values are padded to the width of keys, as fused kernels want them, and cut again.
        padded = functional.pad(value, (0, self.plain + self.rotary - self.value))
        made = self.core(query, torch.cat((key, turned), dim=-1), padded)[..., : self.value]
        result: torch.Tensor = self.o_proj(made.transpose(1, 2).flatten(2))
        return result
