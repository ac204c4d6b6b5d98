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
from meshcost.strategies.data.textbook import DENSE, EXPERTS
from meshcost.strategies.setting import Setting
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


def _length(view: View, weight: Weight) -> Expr:
    """Length, on one rank before data parallelism, of the dim that is cut."""
    dim = cut_dim(view.setting, weight)
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
        axes = (EXPERTS if made.apart else DENSE).axes
        whole = value(Add(*(view.local(weight) for weight in made.weights)), view.values)
        moved = value(padded(view, made.weights, axes), view.values)
        if moved <= whole * _WORTH_A_WORD:
            continue
        most = max(made.weights, key=partial(_excess, view, axes))
        yield (
            f"fully_shard gathers {human_bytes(int(moved * size))} for {human_bytes(int(whole * size))} of weights in "
            f"each {name}: {most.name} has {value(_length(view, most), view.values)} rows for "
            f"{view.mesh.size(*axes)} ranks, and is padded. Shard another dim (torch.shard_placement_fn), spread "
            "experts (parallel.expert.size), or shard over fewer ranks (parallel.data.replicate)."
        )


def _excess(view: View, axes: tuple[str, ...], weight: Weight) -> int:
    return int(value(padded(view, (weight,), axes) - view.local(weight), view.values))
