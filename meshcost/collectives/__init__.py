"""How bytes move: one algorithm, one file. Knows nothing of models, strategies or hardware."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from meshcost.collectives.algorithm import Algorithm, Form
from meshcost.collectives.bruck import BRUCK
from meshcost.collectives.chain import CHAIN
from meshcost.collectives.direct import DIRECT
from meshcost.collectives.double_tree import DOUBLE_TREE
from meshcost.collectives.hierarchical import HIERARCHICAL
from meshcost.collectives.nvls import NVLS
from meshcost.collectives.pairwise import PAIRWISE
from meshcost.collectives.pat import PAT
from meshcost.collectives.rabenseifner import RABENSEIFNER
from meshcost.collectives.rail import RAIL
from meshcost.collectives.recursive_doubling import RECURSIVE_DOUBLING
from meshcost.collectives.recursive_halving import RECURSIVE_HALVING
from meshcost.collectives.ring import RING
from meshcost.collectives.rings import BIDIRECTIONAL_RING, MULTI_RING
from meshcost.collectives.scatter_all_gather import SCATTER_DOUBLING, SCATTER_RING
from meshcost.collectives.sharp import SHARP
from meshcost.collectives.tree import TREE
from meshcost.errors import UnknownAlgorithm

__all__ = ["ALGORITHMS", "DEFAULTS", "Algorithm", "Form", "choose"]

_SHELF: tuple[Algorithm, ...] = (
    RING,
    TREE,
    PAIRWISE,
    DIRECT,
    BIDIRECTIONAL_RING,
    MULTI_RING,
    RECURSIVE_DOUBLING,
    RECURSIVE_HALVING,
    RABENSEIFNER,
    DOUBLE_TREE,
    BRUCK,
    CHAIN,
    SCATTER_RING,
    SCATTER_DOUBLING,
    HIERARCHICAL,
    RAIL,
    PAT,
    NVLS,
    SHARP,
)

#: The shelf: a new algorithm is one file and one line above.
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType({x.name: x for x in _SHELF})

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
    able = [x for x in ALGORITHMS if op in ALGORITHMS[x].forms]
    if not able:
        raise UnknownAlgorithm(f"{op} is not an operation: choose from {', '.join(DEFAULTS)}.")
    name = DEFAULTS[op] if name is None else name
    if name not in able:
        near = get_close_matches(name, able, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UnknownAlgorithm(f"{op} cannot run as {name!r}: choose from {', '.join(able)}.{hint}")
    return ALGORITHMS[name]
