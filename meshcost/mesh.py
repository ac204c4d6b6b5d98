"""The mesh: ranks laid out along named axes, and the groups that collectives run over.

Ranks are numbered with the first axis of the order innermost (consecutive ranks). Inside one pipeline stage the same
ranks are factored a second time for experts: expert_tensor innermost, then expert, then what is left of the stage
(expert_data). Expert parallelism is carved out of the stage, it is not one more factor of the world.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from meshcost.errors import LedgerError

if TYPE_CHECKING:
    import numpy as np

#: The second factoring of a stage, innermost first.
EXPERT_AXES = ("expert_tensor", "expert", "expert_data", "expert_replicate")


@dataclass(frozen=True)
class Mesh:
    """Axes with their sizes, innermost first, and how many ranks share a node.

    ``expert`` factors the ranks of one stage a second time; it is empty where no experts are split.

    >>> mesh = Mesh({"tensor": 2, "data": 4}, gpus_per_node=4)
    >>> mesh.world_size, mesh.group(5, ("data",)), mesh.coordinates(5)
    (8, (1, 3, 5, 7), {'tensor': 1, 'data': 2})
    """

    axes: Mapping[str, int]
    expert: Mapping[str, int] | None = None
    gpus_per_node: int = 8

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(self.axes.values())

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return self.axes.get("pipeline", 1)

    def size(self, *axes: str) -> int:
        """Multiply the sizes of some axes; an axis that the mesh does not have counts 1.

        >>> Mesh({"tensor": 2, "data": 4}).size("tensor", "data", "context")
        8
        """
        return prod(self.axes.get(axis, (self.expert or {}).get(axis, 1)) for axis in axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Say where a rank sits on every axis. Raises LedgerError for a rank outside the world."""
        self.check(rank)
        place = self._unravel(rank, self.axes)
        if self.expert:
            place |= self._unravel(self._index_in_stage(place), self.expert)
        return place

    def check(self, rank: int) -> None:
        """Raise LedgerError unless the rank exists."""
        if not 0 <= rank < self.world_size:
            raise LedgerError(f"rank {rank} does not exist: choose 0 to {self.world_size - 1}.")

    def stage(self, rank: int) -> int:
        """Pipeline stage of a rank."""
        return self.coordinates(rank).get("pipeline", 0)

    def stage_of(self, ranks: "np.ndarray") -> "np.ndarray":
        """Pipeline stage of each of many ranks."""
        if "pipeline" not in self.axes:
            return ranks * 0
        names = tuple(self.axes)
        inner = self.size(*names[: names.index("pipeline")])
        return ranks // inner % self.stages

    def group(self, rank: int, axes: Iterable[str]) -> tuple[int, ...]:
        """List, in ascending order, the ranks that differ from ``rank`` only along ``axes``."""
        self.check(rank)
        table = self.groups(tuple(axes))
        row = int((table == rank).any(axis=1).argmax())
        return tuple(int(member) for member in table[row])

    def groups(self, axes: tuple[str, ...]) -> "np.ndarray":
        """All groups along ``axes``: one row of ascending ranks for each group, shape [groups, members]."""
        if axes not in self._groups:
            self._groups[axes] = self._build(axes)
        return self._groups[axes]

    @cached_property
    def _groups(self) -> "dict[tuple[str, ...], np.ndarray]":
        return {}

    def _build(self, axes: tuple[str, ...]) -> "np.ndarray":
        import numpy as np

        names, grid = self._grid(np.arange(self.world_size), experts=any(x in EXPERT_AXES for x in axes))
        kept = [i for i, name in enumerate(names) if name not in axes]
        moved = [i for i, name in enumerate(names) if name in axes]
        rows = grid.transpose(kept + moved).reshape(-1, prod(grid.shape[i] for i in moved))
        return np.sort(rows, axis=1)

    def _grid(self, ranks: "np.ndarray", *, experts: bool) -> "tuple[list[str], np.ndarray]":
        names = list(reversed(tuple(self.axes)))
        grid = ranks.reshape([self.axes[name] for name in names])
        if not experts or not self.expert:
            return names, grid
        if "pipeline" in names:
            grid = grid.transpose([names.index("pipeline"), *(i for i, x in enumerate(names) if x != "pipeline")])
        inner = list(reversed(tuple(self.expert)))
        return ["pipeline", *inner], grid.reshape([self.stages, *(self.expert[name] for name in inner)])

    def _index_in_stage(self, place: Mapping[str, int]) -> int:
        index, stride = 0, 1
        for axis, size in self.axes.items():
            if axis != "pipeline":
                index += place[axis] * stride
                stride *= size
        return index

    @staticmethod
    def _unravel(index: int, sizes: Mapping[str, int]) -> dict[str, int]:
        place = {}
        for axis, size in sizes.items():
            index, place[axis] = divmod(index, size)
        return place
