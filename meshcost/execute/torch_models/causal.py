"""A causal language model put together from the description of its weights."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import nn

from meshcost import symbols as sym
from meshcost.errors import ModelError
from meshcost.execute.torch_models.assemble import assemble, shaped
from meshcost.execute.torch_models.attention import Attention, LatentAttention
from meshcost.execute.torch_models.mlp import Experts, GatedMlp, Routed
from meshcost.execute.trace_families import BUILT_FAMILIES
from meshcost.models import Model


class Block(nn.Module):
    """Attention and an MLP, each behind a norm and beside a residual."""

    self_attn: nn.Module
    mlp: nn.Module
    input_layernorm: nn.Module
    post_attention_layernorm: nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Work on (batch, sequence, width)."""
        x = x + self.self_attn(self.input_layernorm(x))
        result: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class Decoder(nn.Module):
    """Embedding, blocks and last norm; a pipeline stage has only some of them."""

    layers: nn.ModuleDict

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take token numbers (batch, sequence), or the activations of the stage before."""
        if "embed_tokens" in self._modules:
            x = self.get_submodule("embed_tokens")(x)
        for block in self.layers.values():
            x = block(x)
        return self.get_submodule("norm")(x) if "norm" in self._modules else x


class CausalModel(nn.Module):
    """A decoder with a head; the part of it that one pipeline stage holds has the names of the whole."""

    model: Decoder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take token numbers or activations; give logits, or activations for the next stage."""
        x = self.model(x)
        return self.get_submodule("lm_head")(x) if "lm_head" in self._modules else x

    @property
    def blocks(self) -> list[nn.Module]:
        """The blocks, in order."""
        return list(self.model.layers.values())


def build(model: Model, *, layers: range | None = None, first: bool = True, last: bool = True) -> CausalModel:
    """Build a model of a family in ``BUILT_FAMILIES`` on the current default device; weights are not initialised.

    ``named_parameters()`` of the whole has the names, shapes and order of ``model.weights()``; weights that do not train
    have ``requires_grad=False``. ``layers``, ``first`` and ``last`` choose the part of a pipeline stage: its blocks, and
    whether it has the embedding and the head. Raises ModelError for another family.
    """
    if model.family not in BUILT_FAMILIES:
        raise ModelError(
            f"{model.name or 'this model'}: no PyTorch model of family {model.family!r} is built here. "
            f"Choose one of {', '.join(BUILT_FAMILIES)}."
        )
    made = CausalModel()
    made.model = Decoder()
    if first:
        assemble(made, shaped(model, model.before), {})
    made.model.layers = nn.ModuleDict()
    for layer in layers if layers is not None else range(model.layers):
        made.model.layers[str(layer)] = _block(model, layer)
    if last:
        assemble(made, shaped(model, model.after), {})
        _tie(made, model, first)
    _freeze(made, model)
    return made


def _block(model: Model, layer: int) -> Block:
    kind = model.kinds[model.pattern[layer]]
    weights = [replace(weight, name=weight.name.replace("{layer}", str(layer))) for weight in kind.weights]
    block = Block()
    assemble(block, shaped(model, weights, f"model.layers.{layer}."), _containers(model, kind.has_experts))
    return block


def _containers(model: Model, has_experts: bool) -> Mapping[str, Callable[[], nn.Module]]:
    dims = model.dims

    def attention() -> nn.Module:
        if sym.r_kv in dims:
            return LatentAttention(dims[sym.d_nope], dims[sym.d_rope], dims[sym.d_v], dims[sym.r_kv])
        return Attention(dims[sym.d_head])

    def mlp() -> nn.Module:
        return Routed(dims[sym.k], dims[sym.E]) if has_experts else GatedMlp()

    shared = dict.fromkeys(("mlp.shared_experts", "mlp.shared_expert"), GatedMlp)
    return {"self_attn": attention, "mlp": mlp, "mlp.experts": Experts, **shared}


def _tie(made: CausalModel, model: Model, first: bool) -> None:
    """Give a tied head the weight of the embedding; on a stage without it, a copy of its shape."""
    if not model.tied:
        return
    rows, width = (model.number(x) for x in model.before[0].shape)
    head = nn.Linear(width, rows, bias=False)
    if first:
        head.weight = made.get_parameter("model.embed_tokens.weight")
    made.lm_head = head


def _freeze(made: CausalModel, model: Model) -> None:
    frozen = {weight.name for weight in model.weights() if not weight.trainable}
    for name, parameter in made.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
