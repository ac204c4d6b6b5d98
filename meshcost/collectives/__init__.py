"""How bytes move: one algorithm, one file. Knows nothing of models, strategies or hardware."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from meshcost.collectives.algorithm import Algorithm, Form
from meshcost.collectives.direct import DIRECT
from meshcost.collectives.pairwise import PAIRWISE
from meshcost.collectives.ring import RING
from meshcost.collectives.tree import TREE
from meshcost.errors import UnknownAlgorithm

__all__ = ["ALGORITHMS", "DEFAULTS", "Algorithm", "Form", "choose"]

#: The shelf: a new algorithm is one file and one line here.
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({x.name: x for x in (RING, TREE, PAIRWISE, DIRECT)})

#: What an operation runs on unless a job says otherwise.
DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "all_reduce": "ring",
        "all_gather": "ring",
        "reduce_scatter": "ring",
        "all_to_all": "pairwise",
        "broadcast": "tree",
        "reduce": "tree",
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
    able = [x for x in ALGORITHMS if op in ALGORITHMS[x].forms]
    if not able:
        raise UnknownAlgorithm(f"{op} is not an operation: choose from {', '.join(DEFAULTS)}.")
    name = DEFAULTS[op] if name is None else name
    if name not in able:
        near = get_close_matches(name, able, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UnknownAlgorithm(f"{op} cannot run as {name!r}: choose from {', '.join(able)}.{hint}")
    return ALGORITHMS[name]
