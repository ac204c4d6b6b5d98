"""A causal language model put together from the description of its weights."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import nn

from meshcost import symbols as sym
from meshcost.errors import ModelError
from meshcost.execute.torch_models.assemble import assemble, inside, shaped
from meshcost.execute.torch_models.attention import Attention, LatentAttention
from meshcost.execute.torch_models.mlp import Experts, Mlp, Routed, feed_forward
from meshcost.execute.trace_families import BUILT_FAMILIES, WIRINGS, Wiring
from meshcost.models import Kind, Model, Weight


class Block(nn.Module):
    """Attention and an MLP beside a residual, one after the other or side by side, with norms before or behind them."""

    def __init__(self, wiring: Wiring, *, side_by_side: bool) -> None:
        """Take how it is wired; modules are registered from outside."""
        super().__init__()
        self.wiring, self.side_by_side = wiring, side_by_side

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Work on (batch, sequence, width)."""
        before, behind, second, last = self.wiring.norms
        read = self._normed(before, x)
        if self.side_by_side:
            attended = self.get_submodule(self.wiring.attention)(read)
            return x + attended + self._mlp(self._normed(second, x) if second in self._modules else read)
        x = x + self._normed(behind, self.get_submodule(self.wiring.attention)(read))
        return x + self._normed(last, self._mlp(self._normed(second, x)))

    def _normed(self, name: str, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.get_submodule(name)(x) if name in self._modules else x
        return made

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        modules = [self.get_submodule(name) for name in self.wiring.mlp]
        made: torch.Tensor = modules[0](x) if len(modules) == 1 else feed_forward(modules, x)
        return made


class Decoder(nn.Module):
    """Embedding, blocks and last norm; a pipeline stage has only some of them."""

    def __init__(self, described: Model, path: str) -> None:
        """Take the description, and where in the model this is; weights are registered from outside."""
        super().__init__()
        outside = (*described.before, *described.after)

        def here(*groups: str) -> tuple[str, ...]:
            return tuple(name.removeprefix(f"{path}.") for name in _modules(outside, *groups))

        narrow = here("block")
        self.first = here("embedding", "position")
        self.into = tuple(name for name in narrow if name == "project_in")
        self.last = (*here("norm"), *(name for name in narrow if name == "project_out"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take token numbers (batch, sequence), or the activations of the stage before."""
        word, *positions = [self._modules[name] for name in self.first if name in self._modules] or [None]
        if word is not None:
            numbers = torch.arange(x.shape[-1], device=x.device)
            x, places = word(x), [table(numbers) for table in positions if table is not None]
            x = self._through(self.into, x)
            for place in places:
                x = x + place
        for block in self.blocks.values():
            x = block(x)
        return self._through(self.last, x)

    def _through(self, names: Iterable[str], x: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = self.get_submodule(name)(x) if name in self._modules else x
        return x

    @property
    def blocks(self) -> nn.ModuleDict:
        """The blocks by number: the only modules here that are numbered."""
        return next(module for module in self.children() if isinstance(module, nn.ModuleDict))


class CausalModel(nn.Module):
    """A decoder with a head; the part of it that one pipeline stage holds has the names of the whole."""

    def __init__(self, described: Model) -> None:
        """Take the description; weights are registered from outside."""
        super().__init__()
        self.blocks_path = described.kinds[0].weights[0].name.partition(".{layer}")[0]
        self.path = self.blocks_path.rpartition(".")[0]
        inside(self, self.path, {self.path: lambda: Decoder(described, self.path)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take token numbers or activations; give logits, or activations for the next stage."""
        x = self.decoder(x)
        return self.get_submodule("lm_head")(x) if "lm_head" in self._modules else x

    @property
    def decoder(self) -> Decoder:
        """The model without its head."""
        found = self.get_submodule(self.path)
        assert isinstance(found, Decoder)
        return found

    @property
    def layers(self) -> nn.ModuleDict:
        """The blocks by number."""
        return self.decoder.blocks

    @property
    def blocks(self) -> list[nn.Module]:
        """The blocks, in order."""
        return list(self.layers.values())


def _modules(weights: Iterable[Weight], *groups: str) -> list[str]:
    """Paths of the modules outside the blocks that hold weights of some groups, in order."""
    found = (weight.name.rpartition(".")[0] for weight in weights if weight.group in groups)
    return list(dict.fromkeys(found))


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
    made = CausalModel(model)
    here = {"embedding": first, "head": last, "block": True}
    assemble(made, shaped(model, [weight for weight in model.before if here[weight.unit]]), {})
    made.decoder.add_module(made.blocks_path.rpartition(".")[2], nn.ModuleDict())
    for layer in layers if layers is not None else range(model.layers):
        made.layers[str(layer)] = _block(model, layer, made.blocks_path)
    if last:
        assemble(made, shaped(model, model.after), {})
        _tie(made, model, first)
    _freeze(made, model)
    return made


def _block(model: Model, layer: int, path: str) -> Block:
    kind = model.kinds[model.pattern[layer]]
    weights = [replace(weight, name=weight.name.replace("{layer}", str(layer))) for weight in kind.weights]
    wiring = WIRINGS[model.family]
    block = Block(wiring, side_by_side=kind.regions[0].name == "attention+mlp")
    assemble(block, shaped(model, weights, f"{path}.{layer}."), _containers(model, kind, wiring))
    return block


def _containers(model: Model, kind: Kind, wiring: Wiring) -> Mapping[str, Callable[[], nn.Module]]:
    dims = model.dims

    def attention() -> nn.Module:
        if sym.r_kv in dims:
            return LatentAttention(dims[sym.d_nope], dims[sym.d_rope], dims[sym.d_v], dims[sym.r_kv])
        return Attention(dims[sym.d_head], dims[sym.a], dims.get(sym.a_kv, dims[sym.a]))

    def mlp() -> nn.Module:
        return Routed(dims[sym.k], dims[sym.E]) if kind.has_experts else Mlp()

    shared = dict.fromkeys(("mlp.shared_experts", "mlp.shared_expert"), Mlp)
    return {wiring.attention: attention, "mlp": mlp, "mlp.experts": Experts, **shared}


def _tie(made: CausalModel, model: Model, first: bool) -> None:
    """Give a tied head the weight of the embedding; on a stage without it, a copy of its shape."""
    if not model.tied:
        return
    rows, width = (model.number(x) for x in model.before[0].shape)
    head = nn.Linear(width, rows, bias=False)
    if first:
        head.weight = made.get_parameter(model.before[0].name)
    made.lm_head = head


def _freeze(made: CausalModel, model: Model) -> None:
    frozen = {weight.name for weight in model.weights() if not weight.trainable}
    for name, parameter in made.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
