"""Which modules the units of ``fully_shard`` are."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from meshcost.models import Model
from meshcost.strategies.torch_options import Unit

#: Names that stand for modules of any family: those that hold the weights of a group outside the blocks.
ALIASES = {"embedding": ("embedding", "position"), "norm": ("norm",), "head": ("head",)}


def unit_modules(model: Model, unit: Unit, modules: Iterable[str]) -> list[tuple[str, ...]]:
    """Modules of a unit among the given ones: a list of units, since a name with ``*`` stands for many.

    >>> from meshcost.models import read_model
    >>> model = read_model("llama-3-8b")
    >>> unit_modules(model, ("norm", "head"), ["model.embed_tokens", "model.norm", "lm_head"])
    [('model.norm', 'lm_head')]
    """
    here = list(modules)
    if isinstance(unit, str) and "*" in unit:
        return [(name,) for name in here if fnmatchcase(name, unit)]
    names = (unit,) if isinstance(unit, str) else unit
    found = tuple(name for word in names for name in _named(model, word) if name in here)
    return [found] if found else []


def _named(model: Model, word: str) -> Iterator[str]:
    groups = ALIASES.get(word)
    if groups is None:
        yield word
        return
    outside = (weight for weight in (*model.before, *model.after) if weight.group in groups)
    yield from dict.fromkeys(weight.name.rpartition(".")[0] for weight in outside)
    if word == "head" and model.tied:
        yield "lm_head"
