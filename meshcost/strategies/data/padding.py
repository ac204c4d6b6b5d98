"""Padding of fully_shard: each weight is cut along one dim into as many equal parts as there are ranks.

Where the dim does not divide, every part is as long as the longest, so that experts stored together, few along dim 0, may
be gathered many times over.

Source   torch.distributed.fsdp.fully_shard and its shard_placement_fn, torch 2.13
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import partial

from sympy import Add, Expr, Mul, ceiling

from meshcost.formula import value
from meshcost.models import Weight
from meshcost.strategies.data.fully_shard import by_name
from meshcost.strategies.data.textbook import DENSE, EXPERTS, Part
from meshcost.strategies.expert.options import routed_experts
from meshcost.strategies.setting import Setting, divisors
from meshcost.strategies.view import View
from meshcost.units import human_bytes

#: A group that is gathered with so many times its weights deserves a word.
_WORTH_A_WORD = 1.1


def padded(view: View, weights: tuple[Weight, ...], axes: tuple[str, ...]) -> Expr:
    """Elements of some weights on all ranks of a group together, each padded along the dim that is cut."""
    ranks = view.axis(*axes)
    return Add(*(_padded(view, weight, ranks) for weight in weights))


def _padded(view: View, weight: Weight, ranks: Expr) -> Expr:
    elements, rows = view.local(weight), _length(view, weight)
    if value(rows / ranks, view.values).denominator == 1:
        return elements
    return Mul(ranks, ceiling(rows / ranks), elements / rows)


def _length(view: View, weight: Weight, dim: int | None = None) -> Expr:
    """Length of a dim on one rank before data parallelism: of the one that is cut, unless another is given."""
    dim = cut_dim(view.setting, weight) if dim is None else dim
    length = weight.shape[dim]
    if weight.group == "expert" and view.setting.experts_apart:
        axes = [axis for axis, at in (("expert", 0), ("expert_tensor", weight.shard)) if at == dim]
        return length / view.axis(*axes)
    if weight.shard != dim or not view.is_split(weight):
        return length
    return (length - weight.whole) / view.axis("tensor") + weight.whole


def cut_dim(setting: Setting, weight: Weight) -> int:
    """Dim along which fully_shard cuts a weight: 0, unless a pattern of its name is given another."""
    for pattern, dim in setting.torch.shard_placement_fn.items():
        if fnmatchcase(weight.name, pattern):
            return dim
    return 0


def placement_problems(setting: Setting) -> Iterator[str]:
    """Say which weights have no such dim; uneven parts are cut along dim 0 only."""
    for pattern, dim in setting.torch.shard_placement_fn.items():
        found = [w for kind in setting.model.kinds for w in kind.weights if fnmatchcase(w.name, pattern)]
        if not found:
            yield f"torch.shard_placement_fn: no weight of a block is called {pattern!r}."
        elif any(len(weight.shape) <= dim for weight in found):
            yield f"torch.shard_placement_fn: {pattern!r} has no dim {dim}. Choose 0 to {len(found[0].shape) - 1}."


def surprises(view: View) -> Iterator[str]:
    """Say where much more is gathered than there is, and what helps."""
    size = view.setting.precision.bytes("weights")
    for name, made in by_name(view.setting, view.program.units).items():
        part = EXPERTS if made.apart else DENSE
        axes = part.axes
        whole = value(Add(*(view.local(weight) for weight in made.weights)), view.values)
        moved = value(padded(view, made.weights, axes), view.values)
        if moved <= whole * _WORTH_A_WORD:
            continue
        most = max(made.weights, key=partial(_excess, view, axes))
        helps = _in_a_sentence(list(_remedies(view, most, part)))
        rows = value(_length(view, most), view.values)
        yield (
            f"fully_shard gathers {human_bytes(int(moved * size))} for {human_bytes(int(whole * size))} of weights in one "
            f"group ({name}): {most.name} has {rows} row{'s' * (rows != 1)} for "
            f"{view.mesh.size(*axes)} ranks, and is padded.{helps}"
        )


def _remedies(view: View, weight: Weight, part: Part) -> Iterator[str]:
    """Say what a job can still do about the padding of one weight."""
    setting, ranks = view.setting, view.mesh.size(*part.axes)
    cut = cut_dim(setting, weight)
    others = (_length(view, weight, dim) for dim in range(len(weight.shape)) if dim != cut)
    if any(value(length / ranks, view.values).denominator == 1 for length in others):
        yield "shard another dim (torch.shard_placement_fn)"
    if weight.group == "expert":
        now, taken = setting.size("expert"), setting.expert_tensor
        further = (x for x in divisors(routed_experts(setting.model)) if x > now)
        if any(setting.ranks_in_stage % (x * taken) == 0 for x in further):
            yield (
                "spread experts further (parallel.expert.size)"
                if now > 1
                else "spread experts (parallel.expert.size)"
            )
    data = setting.parallel["data"]
    copies = (x for x in divisors(data.size)[:-1] if x > data.replicate)
    if any(view.mesh.size(*part.axes, *part.replicas) % x == 0 for x in copies):
        yield "shard over fewer ranks (parallel.data.replicate)"


def _in_a_sentence(remedies: list[str]) -> str:
    """Offer what there is; nothing where nothing helps."""
    if not remedies:
        return ""
    text = ", or ".join([", ".join(remedies[:-1])] * (len(remedies) > 1) + remedies[-1:])
    return f" {text[0].upper()}{text[1:]}."


def _excess(view: View, axes: tuple[str, ...], weight: Weight) -> int:
    return int(value(padded(view, (weight,), axes) - view.local(weight), view.values))
