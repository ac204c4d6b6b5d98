"""How bytes move: one algorithm, one file. Knows nothing of models, strategies or hardware."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from types import MappingProxyType

from meshcost.collectives.algorithm import Algorithm, Form
from meshcost.errors import UnknownAlgorithm, shown

__all__ = ["ALGORITHMS", "DEFAULTS", "Algorithm", "Form", "choose"]

#: The shelf: a new algorithm is one file and one line here, with its name, its module and what the module calls it.
_SHELF: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ring": ("ring", "RING"),
        "tree": ("tree", "TREE"),
        "pairwise": ("pairwise", "PAIRWISE"),
        "direct": ("direct", "DIRECT"),
        "bidirectional_ring": ("rings", "BIDIRECTIONAL_RING"),
        "multi_ring": ("rings", "MULTI_RING"),
        "recursive_doubling": ("recursive_doubling", "RECURSIVE_DOUBLING"),
        "recursive_halving": ("recursive_halving", "RECURSIVE_HALVING"),
        "rabenseifner": ("rabenseifner", "RABENSEIFNER"),
        "double_tree": ("double_tree", "DOUBLE_TREE"),
        "bruck": ("bruck", "BRUCK"),
        "chain": ("chain", "CHAIN"),
        "scatter_ring": ("scatter_all_gather", "SCATTER_RING"),
        "scatter_doubling": ("scatter_all_gather", "SCATTER_DOUBLING"),
        "hierarchical": ("hierarchical", "HIERARCHICAL"),
        "rail": ("rail", "RAIL"),
        "pat": ("pat", "PAT"),
        "nvls": ("nvls", "NVLS"),
        "sharp": ("sharp", "SHARP"),
    }
)


class _Shelf(Mapping[str, Algorithm]):
    """The algorithms by name. A module is imported when its algorithm is taken down: a bill needs two or three."""

    def __getitem__(self, name: str) -> Algorithm:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_SHELF)

    def __len__(self) -> int:
        return len(_SHELF)


@cache
def _load(name: str) -> Algorithm:
    module, attribute = _SHELF[name]
    algorithm: Algorithm = getattr(import_module(f"meshcost.collectives.{module}"), attribute)
    return algorithm


ALGORITHMS: Mapping[str, Algorithm] = _Shelf()

#: What an operation runs on unless a job says otherwise.
DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "all_reduce": "ring",
        "all_gather": "ring",
        "reduce_scatter": "ring",
        "all_to_all": "pairwise",
        "broadcast": "tree",
        "reduce": "tree",
        "gather": "direct",
        "scatter": "direct",
        "barrier": "bruck",
        "send": "direct",
        "recv": "direct",
    }
)


def choose(op: str, name: str | None = None) -> Algorithm:
    """Return the algorithm for an operation: the named one, or the default.

    Raises UnknownAlgorithm if there is none of that name, or if it does not perform the operation.

    >>> choose("all_reduce").name, choose("all_reduce", "tree").name
    ('ring', 'tree')
    """
    name = DEFAULTS.get(op, "") if name is None else name
    if name in ALGORITHMS and op in ALGORITHMS[name].forms:
        return ALGORITHMS[name]
    able = [x for x in ALGORITHMS if op in ALGORITHMS[x].forms]
    if not able:
        raise UnknownAlgorithm(f"{op} is not an operation: choose from {', '.join(DEFAULTS)}.")
    near = get_close_matches(name, able, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise UnknownAlgorithm(f"{op} cannot run as {shown(name)}: choose from {', '.join(able)}.{hint}")
