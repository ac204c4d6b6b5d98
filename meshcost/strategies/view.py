"""The model as a layout has sharded it: what one rank of each stage holds and computes, in symbols.

A **Unit** is a piece that is gathered, computed and reduced together: the embedding, one block, the head. A **Stage**
lists the units of ranks that hold the same. Both carry formulas; ``View.call`` and ``View.once`` turn a strategy's
sentence ("all-gather the weights of this unit, forward") into an Event, and drop it where its group is one rank.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal

from sympy import Add, Expr, Integer, Mul, Symbol, ceiling

from meshcost import symbols as sym
from meshcost.event import Event, Phase, Site
from meshcost.formula import Number, Values, value
from meshcost.mesh import Mesh
from meshcost.models import Kind, Weight
from meshcost.program import Program
from meshcost.strategies.setting import Setting
from meshcost.units import item_bytes

AXIS_SYMBOL: Mapping[str, Symbol] = {
    "tensor": sym.t,
    "context": sym.c,
    "data": sym.d,
    "replicate": sym.r,
    "pipeline": sym.p,
    "expert": sym.e,
    "expert_tensor": sym.t_e,
    "expert_data": sym.d_e,
    "expert_replicate": sym.r,
}


When = Literal["every", "first", "last"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A call as a strategy words it: what, over which axes, when, on how much and why. A View gives it a place.

    ``payload`` is bytes of one call. ``pairs`` restricts a group along the pipeline axis to some stages; ``shift`` is
    the distance to the peer of a message, ``split`` cuts a group into groups of that many neighbours.
    """

    strategy: str
    op: str
    axes: tuple[str, ...]
    phase: Phase
    payload: Expr
    dtype: str
    why: str
    pairs: tuple[tuple[int, ...], ...] = ()
    shift: int = 0
    split: int = 0


@dataclass(frozen=True)
class Unit:
    """One kind of unit on the ranks of some stages.

    ``blocks`` is how many of it one rank holds, ``passes`` how many micro-batches each of them sees. ``weights`` and
    ``experts`` are the elements of one unit on one rank (all else and routed experts), ``trained`` and
    ``trained_experts`` those that have gradients.
    """

    name: str
    stages: tuple[int, ...]
    blocks: Expr
    passes: Expr
    values: Values
    kind: Kind | None
    held: tuple[Weight, ...]
    weights: Expr
    trained: Expr
    experts: Expr
    trained_experts: Expr


@dataclass(frozen=True)
class Stage:
    """Ranks that hold the same units. ``site`` is the end of the ``passes`` micro-batches that go through them."""

    stages: tuple[int, ...]
    units: tuple[Unit, ...]
    values: Values
    passes: Expr = sym.m
    site: str = "micro_batch"

    def total(self, what: Literal["weights", "trained", "experts", "trained_experts"]) -> Expr:
        """Elements on one rank, over all units."""
        return Add(*(unit.blocks * getattr(unit, what) for unit in self.units))


@dataclass(frozen=True)
class View:
    """A setting, the mesh and the program that follow from it, and the numbers of all symbols."""

    setting: Setting
    mesh: Mesh
    program: Program
    values: Values

    # -- what one rank holds -----------------------------------------------------------------------------------------

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Stages, those that hold the same taken together."""
        holdings: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for rank in range(self.mesh.stages):
            holdings.setdefault(self._holding(rank), []).append(rank)
        return tuple(self._stage(tuple(ranks), dict(held)) for held, ranks in holdings.items())

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Units, each once for all stages that hold equally many of it."""
        merged: dict[tuple[str, Expr, int], Unit] = {}
        for stage in self.stages:
            for unit in stage.units:
                key = (unit.name, unit.blocks, int(value(unit.blocks, unit.values)))
                seen = merged.get(key)
                stages = unit.stages if seen is None else tuple(sorted(seen.stages + unit.stages))
                merged[key] = self._unit(unit.name, stages, unit.blocks, unit.values)
        return tuple(merged.values())

    @cached_property
    def passed(self) -> tuple[Stage, ...]:
        """What one micro-batch goes through on a rank: all it holds, or one of its two stages (bidirectional)."""
        schedule, units = self.program.schedule, self.program.units
        if schedule.placement != "mirror":
            return self.stages
        found: dict[tuple[str, int, tuple[tuple[str, int], ...]], list[int]] = {}
        for rank in range(schedule.ranks):
            both = [(self.program.end_of(stage), units[stage]) for stage in schedule.hosted(rank)]
            for site, held in dict.fromkeys(both):
                found.setdefault((site, both.count((site, held)), held), []).append(rank)
        return tuple(
            replace(self._stage(tuple(ranks), _counted(held)), passes=times * self.passes, site=site)
            for (site, times, held), ranks in found.items()
        )

    def _holding(self, rank: int) -> tuple[tuple[str, int], ...]:
        hosted = self.program.schedule.hosted(rank)
        return tuple(sorted(_counted(run for stage in hosted for run in self.program.units[stage]).items()))

    def _stage(self, ranks: tuple[int, ...], held: Mapping[str, int]) -> Stage:
        units, values = [], dict(self.values)
        for name in self._unit_names:
            if held.get(name):
                blocks, binding = self._blocks(name, held[name])
                values |= binding
                units.append((name, blocks))
        both = "tied head" if held.get("embedding") else "head"
        return Stage(
            ranks,
            tuple(
                self._unit(name, ranks, blocks, values, both if name == "head" else name)
                for name, blocks in units
            ),
            values,
        )

    @cached_property
    def _unit_names(self) -> tuple[str, ...]:
        return ("embedding", *(kind.name for kind in self.setting.model.kinds), "head")

    def _blocks(self, name: str, number: int) -> tuple[Expr, dict[Symbol, Number]]:
        """Blocks of a kind on one rank: L / p where every stage holds the same share, a symbol of its own elsewhere."""
        model = self.setting.model
        index = next((i for i, kind in enumerate(model.kinds) if kind.name == name), None)
        if index is None:
            return Integer(number), {}
        alike = [kind for kind in model.kinds if kind.has_experts == model.kinds[index].has_experts]
        if len(alike) > 1:
            return Integer(number), {}
        whole, part = (sym.L_e, sym.L_es) if model.kinds[index].has_experts else (sym.L, sym.L_s)
        total, stages = model.layers_of(index), self.mesh.stages
        copies = (1, 2) if self.program.schedule.placement == "mirror" else (1,)
        share = Fraction(number * stages, total)
        if share in copies:
            return int(share) * whole / sym.p if stages > 1 else whole, {whole: total}
        return part, {part: number}

    def _unit(self, name: str, ranks: tuple[int, ...], blocks: Expr, values: Values, holds: str = "") -> Unit:
        kind, held, sums = self._contents[holds or name]
        return Unit(name, ranks, blocks, self.passes, values, kind, held, *sums)

    @cached_property
    def passes(self) -> Expr:
        """Micro-batches that one unit sees in a step; a bidirectional schedule halves them between two copies."""
        return sym.m / 2 if self.program.schedule.placement == "mirror" else sym.m

    @cached_property
    def _contents(self) -> dict[str, tuple[Kind | None, tuple[Weight, ...], tuple[Expr, Expr, Expr, Expr]]]:
        model = self.setting.model
        weights: dict[str, tuple[Kind | None, tuple[Weight, ...]]] = {
            "embedding": (None, model.unit_weights("embedding")),
            "head": (None, (*model.unit_weights("head"), *self._tied_copy)),
            "tied head": (None, model.unit_weights("head")),  # beside the embedding, which it shares
        }
        weights |= {kind.name: (kind, kind.weights) for kind in model.kinds}
        return {name: (kind, held, self._sums(held)) for name, (kind, held) in weights.items()}

    def _sums(self, held: tuple[Weight, ...]) -> tuple[Expr, Expr, Expr, Expr]:
        def add(*, experts: bool, trained: bool) -> Expr:
            chosen = (w for w in held if self._apart(w) == experts and (w.trainable or not trained))
            return Add(*(self.local(weight) for weight in chosen))

        return (
            add(experts=False, trained=False),
            add(experts=False, trained=True),
            add(experts=True, trained=False),
            add(experts=True, trained=True),
        )

    def _apart(self, weight: Weight) -> bool:
        return weight.group == "expert" and self.setting.experts_apart

    @cached_property
    def tie_ranks(self) -> tuple[int, ...]:
        """Pipeline ranks that hold a copy each of one tied embedding; empty where one rank has both ends."""
        schedule = self.program.schedule
        ends = (schedule.host(0), schedule.host(schedule.virtual_stages - 1))
        apart = self.setting.model.tied and ends[0] != ends[1] and schedule.placement != "mirror"
        return ends if apart else ()

    @cached_property
    def _tied_copy(self) -> tuple[Weight, ...]:
        """The word embedding as weights of a head that is passed without the embedding."""
        apart = self.tie_ranks or (self.setting.model.tied and self.program.schedule.placement == "mirror")
        words = (w for w in self.setting.model.unit_weights("embedding") if w.group == "embedding")
        return tuple(replace(w, unit="head") for w in words) if apart and self.mesh.stages > 1 else ()

    # -- sizes of things on one rank ---------------------------------------------------------------------------------

    def axis(self, *axes: str) -> Expr:
        """Product of the sizes of some axes, leaving out those of size one."""
        return Mul(*(self.axis_symbol(axis) for axis in axes if self.mesh.size(axis) > 1))

    def axis_symbol(self, axis: str) -> Expr:
        """Symbol of an axis; the bare number for an axis that a plug-in brings."""
        return AXIS_SYMBOL.get(axis, Integer(self.mesh.size(axis)))

    def local(self, weight: Weight) -> Expr:
        """Elements of a weight on one rank, before data parallelism."""
        if weight.group == "expert" and self.setting.experts_apart:
            split = self.axis("expert") * (self.axis("expert_tensor") if weight.shard is not None else 1)
            return weight.count / split
        if not self.is_split(weight):
            return weight.count
        return (weight.count - self.whole_part(weight)) / self.axis("tensor") + self.whole_part(weight)

    def is_split(self, weight: Weight) -> bool:
        """Whether the tensor axis splits this weight."""
        by_vocabulary = weight.group in ("embedding", "head")
        return weight.shard is not None and (self.setting.splits_vocabulary or not by_vocabulary)

    @staticmethod
    def whole_part(weight: Weight) -> Expr:
        """Elements of a split weight that every tensor rank keeps whole (keys and values of multi-query attention)."""
        if weight.shard is None or weight.whole == 0:
            return Integer(0)
        return weight.whole * weight.count / weight.shape[weight.shard]

    def shard(self, elements: Expr, *axes: str) -> Expr:
        """One shard of some elements; rounded up only where they do not divide."""
        count = self.axis(*axes)
        part = elements / count
        return part if value(part, self.values_with_blocks).denominator == 1 else ceiling(part)

    @cached_property
    def values_with_blocks(self) -> Values:
        """Numbers of all symbols; those of blocks are the ones of the first stage that has them."""
        merged: dict[Symbol, Number] = {}
        for stage in reversed(self.stages):
            merged |= stage.values
        return merged

    @property
    def tokens(self) -> Expr:
        """Tokens between two regions on one rank: split over the tensor axis by sequence parallelism."""
        return sym.T / sym.t if self.setting.sequence_parallel else sym.T

    # -- events ------------------------------------------------------------------------------------------------------

    def call(
        self,
        draft: Draft,
        unit: Unit,
        *,
        order: tuple[int, ...],
        repeat: Expr | int = 1,
        micro_batches: When = "every",
        from_layer: int = 0,
    ) -> Iterator[Event]:
        """Place a draft in a unit: it happens once (or ``repeat`` times) in each of its passes.

        Blocks of the model before ``from_layer`` do without.
        """
        passes = unit.passes if micro_batches == "every" else Integer(1)
        times = int(value(Integer(repeat) if isinstance(repeat, int) else repeat, unit.values))
        site = Site(unit.name, order, times, micro_batches, from_layer)
        for late in self._later(unit, from_layer) if from_layer else (unit,):
            yield from self._event(draft, late.blocks * passes * repeat, site, late)

    def _later(self, unit: Unit, layer: int) -> Iterator[Unit]:
        """The blocks of a unit from a layer on, for stages that hold equally many of them."""
        alike: dict[int, list[int]] = {}
        for stage in unit.stages:
            parts = (part for part in self.program.finish(stage) if part.unit == f"update {unit.name}")
            alike.setdefault(sum((part.layer or 0) >= layer for part in parts), []).append(stage)
        for number, stages in alike.items():
            yield replace(unit, blocks=Integer(number), stages=tuple(stages))

    def each(
        self,
        draft: Draft,
        unit: Unit,
        walk: Literal["clip", "update"],
        *,
        order: tuple[int, ...],
        repeat: int = 1,
    ) -> Iterator[Event]:
        """Place a draft in a walk through the weights of a rank: ``repeat`` times in each block of a unit."""
        site = Site(f"{walk} {unit.name}", order, repeat)
        yield from self._event(draft, unit.blocks * repeat, site, unit)

    def once(
        self,
        draft: Draft,
        where: Stage | Unit,
        *,
        order: tuple[int, ...],
        every_micro_batch: bool = False,
        repeat: Expr = Integer(1),
    ) -> Iterator[Event]:
        """Place a draft at the end of the step, or of each micro-batch, ``repeat`` times."""
        times = int(value(repeat, where.values))
        site = Site("micro_batch" if every_micro_batch else "step", order, times)
        yield from self._event(draft, (sym.m if every_micro_batch else Integer(1)) * repeat, site, where)

    def after_micro_batches(self, draft: Draft, passed: Stage, *, order: tuple[int, ...]) -> Iterator[Event]:
        """Place a draft at the end of each micro-batch that went through some units."""
        yield from self._event(draft, passed.passes, Site(passed.site, order), passed)

    def at_boundary(
        self, draft: Draft, count: Expr, stages: tuple[int, ...], *, order: int
    ) -> Iterator[Event]:
        """Place a draft between two pipeline stages."""
        yield from self._event(draft, count, Site("boundary", (order,)), Stage(stages, (), self.values))

    def at(
        self, draft: Draft, count: Expr, site: Site, stages: tuple[int, ...], values: Values
    ) -> Iterator[Event]:
        """Place a draft at a site of one's own; ``values`` are the numbers of the symbols in its formulas."""
        yield from self._event(draft, count, site, Stage(stages, (), values))

    def _event(self, draft: Draft, count: Expr, site: Site, where: Stage | Unit) -> Iterator[Event]:
        axes = tuple(axis for axis in draft.axes if self.mesh.size(axis) > 1)
        size = draft.split or (len(draft.pairs[0]) if draft.pairs else self.mesh.size(*axes))
        if size == 1 or draft.payload == 0 or count == 0 or site.repeat == 0:
            return
        yield Event(
            strategy=draft.strategy,
            op=draft.op,
            axes=axes,
            group_size=size,
            phase=draft.phase,
            why=draft.why,
            dtype=draft.dtype,
            payload=draft.payload,
            count=count,
            values=where.values,
            stages=where.stages,
            site=site,
            item_bytes=item_bytes(draft.dtype),
            pairs=draft.pairs,
            # A gather at a boundary keeps the distance of its message, to be found with it.
            shift=draft.shift % size if draft.op in ("send", "recv") else draft.shift,
            split=draft.split,
        )


def _counted(runs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Add up runs of units by name."""
    found: dict[str, int] = {}
    for name, number in runs:
        found[name] = found.get(name, 0) + number
    return found
