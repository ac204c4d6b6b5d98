"""The mesh: ranks laid out along named axes, and the groups that collectives run over.

Ranks are numbered with the first axis of the order innermost (consecutive ranks). Inside one pipeline stage the same
ranks are factored a second time for experts: expert_tensor innermost, then expert, then what is left of the stage
(expert_data). Expert parallelism is carved out of the stage, it is not one more factor of the world.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product, takewhile
from math import gcd, prod

from meshcost.errors import LedgerError

#: The second factoring of a stage, innermost first.
EXPERT_AXES = ("expert_tensor", "expert", "expert_data", "expert_replicate")

#: More ranks than this are not computed, whatever file asks for them.
LARGEST_WORLD = 2**20

Group = tuple[int, ...]

#: How an axis lies in the rank number: (places, ranks from one to the next), innermost first.
Steps = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A group whose ranks lie evenly in the rank number: the first of them, and the steps of its axes, innermost first.

    >>> row = Mesh({"tensor": 2, "data": 4}).row(5, ("data",))
    >>> row.ranks(), row.index(5), row.rank(3)
    ((1, 3, 5, 7), 2, 7)
    """

    first: int
    steps: Steps

    def ranks(self) -> Group:
        """All ranks, ascending."""
        return tuple([self.first + offset for offset in _offsets(self.steps)])

    def index(self, rank: int) -> int:
        """Position of a rank of this group."""
        at, scale = 0, 1
        for size, stride in self.steps:
            at, scale = at + rank // stride % size * scale, scale * size
        return at

    def rank(self, position: int) -> int:
        """The rank at a position, which may lie beyond the last: around to the first again."""
        rank = self.first
        for size, stride in self.steps:
            position, at = divmod(position, size)
            rank += at * stride
        return rank


@dataclass(frozen=True)
class Mesh:
    """Axes with their sizes, innermost first, and how many ranks share a node.

    ``expert`` factors the ranks of one stage a second time; it is None where no experts are split.

    >>> mesh = Mesh({"tensor": 2, "data": 4}, gpus_per_node=4)
    >>> mesh.world_size, mesh.group(5, ("data",)), mesh.coordinates(5)
    (8, (1, 3, 5, 7), {'tensor': 1, 'data': 2})
    """

    axes: Mapping[str, int]
    expert: Mapping[str, int] | None = None
    gpus_per_node: int = 8

    @cached_property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(self.axes.values())

    @cached_property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return self.axes.get("pipeline", 1)

    def size(self, *axes: str) -> int:
        """Multiply the sizes of some axes; an axis that the mesh does not have counts 1.

        >>> Mesh({"tensor": 2, "data": 4}).size("tensor", "data", "context")
        8
        """
        return prod(self.axes.get(axis, (self.expert or {}).get(axis, 1)) for axis in axes)

    def check(self, rank: int) -> None:
        """Raise LedgerError unless the rank exists."""
        if not 0 <= rank < self.world_size:
            legal = f"choose 0 to {self.world_size - 1}" if self.world_size > 1 else "there is only rank 0"
            raise LedgerError(f"rank {rank} does not exist: {legal}.")

    def check_stage(self, stage: int) -> None:
        """Raise LedgerError unless the pipeline stage exists."""
        if not 0 <= stage < self.stages:
            legal = f"choose 0 to {self.stages - 1}" if self.stages > 1 else "there is only stage 0"
            raise LedgerError(f"stage {stage} does not exist: {legal}.")

    def coordinates(self, rank: int) -> dict[str, int]:
        """Say where a rank sits on every axis. Raises LedgerError for a rank outside the world."""
        self.check(rank)
        place = _unravel(rank, self.axes)
        return place | _unravel(_ravel(place, self._in_stage), self.expert) if self.expert else place

    def stage(self, rank: int) -> int:
        """Pipeline stage of a rank. Raises LedgerError for a rank outside the world."""
        self.check(rank)
        return rank // self._inside % self.stages

    def ranks_of(self, stage: int) -> Iterator[int]:
        """Yield the ranks of a pipeline stage, ascending.

        >>> list(Mesh({"tensor": 2, "pipeline": 2, "data": 2}).ranks_of(1))
        [2, 3, 6, 7]
        """
        inside = self._inside
        for first in range(stage * inside, self.world_size, inside * self.stages):
            yield from range(first, first + inside)

    def group(self, rank: int, axes: Iterable[str]) -> Group:
        """List, in ascending order, the ranks that differ from ``rank`` only along ``axes``."""
        along = tuple(axes)
        row = self.row(rank, along)
        if row is not None:
            return row.ranks()
        place, sizes = self.coordinates(rank), self._factors(along)
        fixed = {
            axis: (coordinate,) for axis, coordinate in place.items() if axis in sizes and axis not in along
        }
        return self._members(sizes, fixed)

    def row(self, rank: int, axes: tuple[str, ...]) -> "Row | None":
        """The same group without a list of its ranks; None where groups along the axes differ in shape."""
        self.check(rank)
        if axes not in self._rows:
            steps = self._steps(axes)
            runs = [run for axis in axes for run in steps.get(axis, ())] if steps is not None else None
            self._rows[axes] = None if runs is None else tuple(sorted(runs, key=lambda run: run[1]))
        own = self._rows[axes]
        return None if own is None else Row(rank - sum(rank // x % size * x for size, x in own), own)

    @cached_property
    def _rows(self) -> dict[tuple[str, ...], Steps | None]:
        """Steps of the groups that were asked for already."""
        return {}

    def groups(self, axes: tuple[str, ...]) -> Iterator[Group]:
        """Yield all groups along ``axes``, each with its ranks in ascending order."""
        steps = self._steps(axes)
        if steps is None:  # groups differ in shape
            sizes = self._factors(axes)
            others = [axis for axis in sizes if axis not in axes]
            for place in product(*(range(sizes[axis]) for axis in others)):
                yield self._members(sizes, {axis: (at,) for axis, at in zip(others, place, strict=True)})
            return
        offsets = _offsets(run for axis in axes for run in steps.get(axis, ()))
        for first in _offsets(run for axis in steps if axis not in axes for run in steps[axis]):
            yield tuple([first + offset for offset in offsets])

    def samples(self, axes: tuple[str, ...], stages: Iterable[int]) -> dict[Group, int]:
        """Some groups of these stages, one for each way in which groups along ``axes`` lie on nodes, and how many lie so.

        Two groups whose first ranks have the same place within their node cross nodes alike, because all groups of the
        same axes have the same shape. So the places are enumerated, not the groups.

        >>> Mesh({"tensor": 2, "data": 8}, gpus_per_node=4).samples(("tensor",), (0,))
        {(0, 1): 4, (2, 3): 4}
        """
        steps = self._steps(axes)
        if steps is None:
            return self._uneven(axes, stages)
        offsets = _offsets(run for axis in axes for run in steps.get(axis, ()))
        node, starts = self.gpus_per_node, {0: 1}
        for axis in (axis for axis in steps if axis not in axes):
            for size, stride in steps[axis]:
                places = dict.fromkeys(stages, 1) if axis == "pipeline" else _alike(size, node)
                starts = _moved(starts, places, stride, node)
        return {tuple([start + offset for offset in offsets]): starts[start] for start in sorted(starts)}

    def _uneven(self, axes: tuple[str, ...], stages: Iterable[int]) -> dict[Group, int]:
        """Samples where the pipeline axis cuts groups of experts at different members.

        What repeats is the place within the stage at which a group starts: after ``period`` places the cuts are the same
        and a whole number of nodes has gone by.
        """
        assert self.expert is not None
        period = self._inside * self.gpus_per_node // gcd(self.gpus_per_node, self._inside * self.stages)
        runs = dict(
            zip(self.expert, zip(self.expert.values(), _strides(self.expert), strict=True), strict=True)
        )
        offsets, starts = _offsets(runs[axis] for axis in axes if axis in runs), {0: 1}
        for size, stride in (runs[axis] for axis in runs if axis not in axes):
            starts = _moved(starts, _alike(size, period), stride, period)
        together = [range(self.stages)] if "pipeline" in axes else [(stage,) for stage in stages]
        return {
            tuple(sorted(self._rank(start + offset, stage) for stage in group for offset in offsets)): starts[
                start
            ]
            for start in sorted(starts)
            for group in together
        }

    # -- the two factorings ------------------------------------------------------------------------------------------

    @property
    def _in_stage(self) -> dict[str, int]:
        return {axis: size for axis, size in self.axes.items() if axis != "pipeline"}

    def _factors(self, axes: tuple[str, ...]) -> Mapping[str, int]:
        """The factoring in which ``axes`` live: the axes of the mesh, or those of experts with the stages outermost."""
        if self.expert and any(axis in EXPERT_AXES for axis in axes):
            return {**self.expert, "pipeline": self.stages}
        return self.axes

    @cached_property
    def _inside(self) -> int:
        """Ranks of one stage that are neighbours in the rank number: those along the axes before the pipeline."""
        return prod(size for _, size in takewhile(lambda axis: axis[0] != "pipeline", self.axes.items()))

    def _steps(self, axes: tuple[str, ...]) -> dict[str, Steps] | None:
        """How each axis lies in the rank number.

        The pipeline axis can cut an axis of experts in two, with other strides. None where it cuts groups unevenly.
        """
        if self._factors(axes) is self.axes:
            strides = zip(self.axes.items(), _strides(self.axes), strict=True)
            return {axis: ((size, stride),) for (axis, size), stride in strides}
        assert self.expert is not None
        inside, steps = self._inside, dict[str, Steps]()
        for (axis, size), stride in zip(self.expert.items(), _strides(self.expert), strict=True):
            before = inside // stride
            if size <= before:
                steps[axis] = ((size, stride),)
            elif stride >= inside:
                steps[axis] = ((size, stride * self.stages),)
            elif inside % stride == 0 and size % before == 0:
                steps[axis] = ((before, stride), (size // before, inside * self.stages))
            else:
                return None
        return {**steps, "pipeline": ((self.stages, inside),)}

    def _rank(self, place: int, stage: int) -> int:
        """Rank at a place among the ranks of one stage, counted in the order of the rank number."""
        outside, within = divmod(place, self._inside)
        return within + self._inside * (stage + self.stages * outside)

    def _members(self, sizes: Mapping[str, int], fixed: Mapping[str, tuple[int, ...]]) -> Group:
        span = [fixed.get(axis, range(size)) for axis, size in sizes.items()]
        places = (dict(zip(sizes, place, strict=True)) for place in product(*span))
        if sizes is self.axes:
            return tuple(sorted(_ravel(place, sizes) for place in places))
        return tuple(sorted(self._rank_of(place) for place in places))

    def _rank_of(self, place: Mapping[str, int]) -> int:
        """Rank at a place on the expert axes of a stage."""
        assert self.expert is not None
        return self._rank(_ravel(place, self.expert), place["pipeline"])


def _offsets(steps: Iterable[tuple[int, int]]) -> list[int]:
    """Distances of the members of a group from its first, for (places, stride) of each axis."""
    offsets = [0]
    for size, stride in sorted(steps, key=lambda step: step[1]):  # so that they come in ascending order
        offsets = [place + offset for place in range(0, size * stride, stride) for offset in offsets]
    return offsets


def _alike(size: int, period: int) -> dict[int, int]:
    """Places along an axis up to the first that is like an earlier one, each with the number of places like it."""
    return {place: len(range(place, size, period)) for place in range(min(size, period))}


def _moved(starts: Mapping[int, int], places: Mapping[int, int], stride: int, period: int) -> dict[int, int]:
    """Where groups start, and how many, after a step to each of these places along one more axis."""
    found = Counter[int]()
    for (start, groups), (place, alike) in product(starts.items(), places.items()):
        found[(start + place * stride) % period] += groups * alike
    return found


def _strides(sizes: Mapping[str, int]) -> list[int]:
    strides, stride = [], 1
    for size in sizes.values():
        strides.append(stride)
        stride *= size
    return strides


def _ravel(place: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    index, stride = 0, 1
    for axis, size in sizes.items():
        index += place[axis] * stride
        stride *= size
    return index


def _unravel(index: int, sizes: Mapping[str, int]) -> dict[str, int]:
    place = {}
    for axis, size in sizes.items():
        index, place[axis] = divmod(index, size)
    return place
