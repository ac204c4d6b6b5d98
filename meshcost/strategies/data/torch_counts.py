"""How often something is called that has no fixed place: counted on the program, and said as a formula in m."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, lru_cache

from sympy import Expr, Integer, Rational

from meshcost import symbols as sym
from meshcost.event import Event, Site
from meshcost.formula import Number, Values, value
from meshcost.program import Program
from meshcost.strategies.view import Draft, View
from meshcost.torch_schedule import has_long_rounds, is_listed

#: Beyond that many rounds of micro-batches a schedule only repeats itself.
_ROUNDS = 4

Calls = Counter[tuple[str, str]]


class Counts:
    """Calls of each part of a program, by pipeline rank."""

    def __init__(self, view: View) -> None:
        """Count on the program of a view."""
        self.view, self.program = view, view.program

    def place(self, draft: Draft, part: str, order: tuple[int, ...], *, repeat: int = 1) -> Iterator[Event]:
        """Yield the events of a draft that happens whenever the walk passes a part of that name, ``repeat`` times."""
        found: dict[tuple[Expr, Number], list[int]] = {}
        for rank in range(self.view.mesh.stages):
            count = self._formula(rank, part, draft.phase)
            if count != 0:
                # Stages that hold different numbers of blocks say them with one symbol.
                found.setdefault((count, value(count, self._values(rank))), []).append(rank)
        for (count, _), ranks in found.items():
            site = Site(part, order, repeat)
            yield from self.view.at(draft, repeat * count, site, tuple(ranks), self._values(ranks[0]))

    def _formula(self, rank: int, part: str, phase: str) -> Expr:
        """Count as blocks x (slope x m + rest), where it grows so; the bare number elsewhere."""
        here, *more = (calls[part, phase] for calls in self._samples[rank])
        if not any((here, *more)):
            return Integer(0)
        if not more:
            return Integer(here)
        if more[1] - more[0] != more[0] - here:
            return Integer(_count(self.program, rank)[part, phase])
        slope = Rational(more[0] - here, self._step)
        name = part.partition(" ")[2]
        blocks, number = self._blocks(rank, name)
        rest = here - slope * self._first
        if slope % number or rest % number:
            return slope * sym.m + rest
        return blocks * (slope / number * sym.m + rest / number)

    def _blocks(self, rank: int, name: str) -> tuple[Expr, int]:
        stage = next(x for x in self.view.stages if rank in x.stages)
        unit = next((x for x in stage.units if x.name == name), None)
        if unit is None or unit.kind is None:
            return Integer(1), 1
        hosted = self.program.schedule.hosted(rank)
        return unit.blocks, sum(n for x in hosted for label, n in self.program.units[x] if label == name)

    def _values(self, rank: int) -> Values:
        return next(x for x in self.view.stages if rank in x.stages).values

    @property
    def _step(self) -> int:
        """Micro-batches from one legal number to the next."""
        schedule = self.program.schedule
        return schedule.ranks if schedule.chunks > 1 or is_listed(schedule) else 1

    @cached_property
    def _first(self) -> int:
        """Micro-batches of the first of three samples: those of the job, or as many as show how it goes on."""
        schedule = self.program.schedule
        enough, step = _ROUNDS * schedule.ranks * schedule.chunks, self._step
        asked = schedule.micro_batches
        return asked if asked <= enough else enough + (asked - enough) % step

    @cached_property
    def _samples(self) -> tuple[tuple[Calls, ...], ...]:
        sizes = tuple(self._first + self._step * more for more in range(3))
        if has_long_rounds(self.program.schedule):
            sizes = (self.program.schedule.micro_batches,)
        return _sampled(self.program, sizes)


@lru_cache(maxsize=8)
def _sampled(program: Program, sizes: tuple[int, ...]) -> tuple[tuple[Calls, ...], ...]:
    """Calls of each rank for some numbers of micro-batches. Several strategies ask for those of one program."""
    schedule = program.schedule
    programs = [replace(program, schedule=replace(schedule, micro_batches=size)) for size in sizes]
    return tuple(tuple(_count(each, rank) for each in programs) for rank in range(schedule.ranks))


def _count(program: Program, rank: int) -> Calls:
    return Counter((part.unit, part.phase) for part in program.walk(rank) if " " in part.unit)
