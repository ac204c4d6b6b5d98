"""Which weights fully_shard puts into one group, and where in a stage each group is used.

Source   torch.distributed.fsdp.fully_shard: inner calls take their weights first, the root what is left
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from meshcost.models import Weight
from meshcost.sharding import Inside, ShardGroup, Sharding
from meshcost.strategies.data.flat_parameter import flat_rules, reshards, trained_together
from meshcost.strategies.data.options import SHARDS_WEIGHTS, syncs_every
from meshcost.strategies.data.placed import TIED_HEAD, Placed, Units, placed_weights
from meshcost.strategies.data.use_order import in_use_order
from meshcost.strategies.regions import ENTER, INSIDE, LEAVE
from meshcost.strategies.setting import Setting
from meshcost.strategies.torch_options import BLOCKS, Unit
from meshcost.strategies.torch_units import unit_modules

ROOT = "root"


@dataclass(frozen=True)
class WrappedGroup:
    """A group and the weights in it. ``apart``: experts, which are sharded over ranks of their own."""

    group: ShardGroup
    weights: tuple[Weight, ...]
    apart: bool


def sharding_of(setting: Setting, units: Units) -> Sharding | None:
    """Say what fully_shard does in each virtual stage; None where it is not asked for."""
    if setting.parallel["data"].strategy not in SHARDS_WEIGHTS and not setting.wraps_flat:
        return None
    torch = setting.torch
    return Sharding(
        tuple(tuple(w.group for w in wrapped(setting, units, stage)) for stage in range(len(units))),
        gradient_sync="every" if syncs_every(setting) else "last",
        reshard_after_backward=torch.set_reshard_after_backward,
        last_backward="last" if torch.set_is_last_backward else "every",
        staged=setting.size("pipeline") > 1,
        flat=flat_rules(setting) if setting.wraps_flat else None,
    )


def by_name(setting: Setting, units: Units) -> dict[str, WrappedGroup]:
    """Find the kinds of groups of all stages, by the first of each: those of one name hold the same weights."""
    found: dict[str, WrappedGroup] = {}
    for stage in range(len(units)):
        for made in wrapped(setting, units, stage):
            found.setdefault(made.group.name, made)
    return found


def wrapped(setting: Setting, units: Units, stage: int) -> list[WrappedGroup]:
    """List the groups of one virtual stage, outermost first, as torch does."""
    placed = placed_weights(setting, units, stage)
    modules = modules_of(placed)
    free = {item.name: item for item in placed}
    found: list[tuple[int, WrappedGroup]] = []
    calls = unit_calls(setting, placed)
    shares = _shares_head(setting, placed)
    if setting.wraps_flat:
        placed = trained_together(placed, [names for _, names, _ in calls])
        free = {item.name: item for item in placed}
    for kind, names, keeps in calls:
        taken = [free.pop(name) for name in list(free) if _within(name, names)]
        if taken:
            members = _members(placed, names)
            if shares and any(x.weight.group == "embedding" for x in taken):
                # The head is in the same unit, which is used until the end.
                members += [x for x in placed if x.weight.unit == "head"]
            made = _group(setting, kind, taken, members, placed)
            made = _with_rule(setting, made, keeps=keeps)
            found.append((min(modules.index(name) for name in names), made))
    ordered = [made for _, made in sorted(found, key=lambda item: item[0])]
    if free:
        name = f"{ROOT} of stage {stage}" if len(units) > 1 else ROOT
        root = _group(setting, name, list(free.values()), placed, placed)
        ordered.insert(0, _with_rule(setting, root, keeps=setting.wraps_flat or _given(setting) is None))
    return _told(ordered) if setting.torch.prefetch == "next_unit" else ordered


def _told(wrapped: list[WrappedGroup]) -> list[WrappedGroup]:
    """Let each unit gather the next one in advance with the groups inside it, and going backward the one before."""
    units: list[list[int]] = []
    for at, made in enumerate(wrapped):
        if made.group.name.startswith(ROOT):
            continue
        around = wrapped[units[-1][0]].group if units else None
        is_within = around is not None and around.inside is None and around.enter == made.group.enter
        if made.group.inside is not None and is_within:
            units[-1].append(at)
        else:
            units.append([at])
    told = list(wrapped)
    for (here, *_), (there, *_) in pairwise(units):
        seen, back = _seen_from(wrapped, here, units), _seen_from(wrapped, there, units)
        told[here] = replace(told[here], group=replace(told[here].group, forward_prefetch=seen[there]))
        told[there] = replace(told[there], group=replace(told[there].group, backward_prefetch=back[here]))
    return told


def _seen_from(wrapped: list[WrappedGroup], here: int, units: list[list[int]]) -> dict[int, tuple[int, ...]]:
    """What a unit gathers of another: blocks gather the groups inside a block too, both ends only the block."""
    is_block = wrapped[here].weights[0].unit == "block"
    return {unit[0]: tuple(unit if is_block else unit[:1]) for unit in units}


def unit_calls(setting: Setting, placed: Sequence[Placed]) -> list[tuple[str, tuple[str, ...], bool]]:
    """List what is wrapped but for the root: kind of group, modules, whether it stays gathered."""
    return list(_calls(setting, placed, modules_of(placed)))


def _calls(
    setting: Setting, placed: Sequence[Placed], modules: Sequence[str]
) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Yield the calls of fully_shard but for the root: kind of group, modules, whether it stays gathered."""
    model, options = setting.model, setting.torch
    blocks = {item.label: item for item in placed if item.weight.unit == "block"}
    if setting.experts_apart:
        for label in blocks:
            experts = [x.name for x in placed if x.label == label and x.weight.group == "expert"]
            if experts:
                yield f"experts of {_kind(label)}", (experts[0].partition("experts")[0] + "experts",), False
    calls: list[tuple[str, tuple[str, ...]]] = []
    for unit in options.units:
        if unit == BLOCKS:
            calls += [(_kind(label), (_block(item),)) for label, item in blocks.items()]
        else:
            found = unit_modules(model, unit, modules)
            calls += [(_in_words(unit, names, placed), names) for names in found]
    for place, (kind, names) in enumerate(calls):
        is_kept = options.keep_last_unit and place == len(calls) - 1
        yield kind, names, is_kept


def _group(
    setting: Setting, kind: str, weights: Sequence[Placed], members: Sequence[Placed], stage: Sequence[Placed]
) -> WrappedGroup:
    """Make a group of the weights it takes and of all weights within its modules, those of groups inside too."""
    enter, leave = min(x.place for x in members), max(x.place for x in members)
    inside = _inside(setting, members, stage)
    until = leave + 1 if inside is None else enter
    takes = stage[0].place > 0 or any(x.weight.trainable for x in stage if x.place < enter)
    takes |= inside is not None and any(x.weight.trainable for x in stage if x.place == enter)
    gives = takes or any(x.weight.trainable for x in stage if x.place < until)
    are_experts = all(x.weight.group == "expert" for x in weights)
    again = inside[0] if inside is not None and setting.recompute == "full" else None
    group = ShardGroup(
        name=kind,
        label=kind if kind.startswith(ROOT) else weights[0].label,
        enter=enter - stage[0].place,
        leave=leave - stage[0].place,
        inside=inside,
        inside_backward=_inside_backward(
            inside, at_once=again is not None and _ends_block(setting, members, stage)
        ),
        again=again,
        scatters=any(x.weight.trainable for x in weights),
        takes_gradient=takes,
        gives_gradient=gives,
        early=inside is None and enter == leave and not _ends_unit(setting, members, stage),
    )
    return WrappedGroup(group, tuple(x.weight for x in weights), setting.experts_apart and are_experts)


def _ends_unit(setting: Setting, members: Sequence[Placed], stage: Sequence[Placed]) -> bool:
    """Whether a group holds what its last unit uses last, which may be the weight that a head shares."""
    last = [x for x in stage if x.place == members[-1].place][-1]
    if last.weight.unit == "head" and _shares_head(setting, stage):
        return any(x.weight.group == "embedding" for x in members)
    return last in members


def _shares_head(setting: Setting, stage: Sequence[Placed]) -> bool:
    """Whether the head of a stage has no weight but that of the embedding."""
    return setting.model.tied and all(x.name != TIED_HEAD for x in stage)


def _with_rule(setting: Setting, made: WrappedGroup, *, keeps: bool) -> WrappedGroup:
    """Say whether a group lets go of its weights after forward, and among how many ranks they stay then."""
    given, size = _given(setting), setting.size("data", "context") // setting.parallel["data"].replicate
    if setting.wraps_flat:
        return replace(made, group=replace(made.group, reshards=reshards(setting) and not keeps))
    if keeps or given is False:
        return replace(made, group=replace(made.group, reshards=False))
    part = 0 if made.apart or given in (None, True, size) else int(given or 0)
    return replace(made, group=replace(made.group, part=part))


def _given(setting: Setting) -> bool | int | None:
    asked = setting.torch.reshard_after_forward
    data = setting.parallel["data"]
    return asked if asked is not None else False if data.gather == "once" else data.reshard_after_forward


# -- weights and modules of a stage ----------------------------------------------------------------------------------


def modules_of(placed: Sequence[Placed]) -> list[str]:
    """Names of modules in the order in which torch visits them: each before those inside it."""
    names: dict[str, None] = {}
    for item in placed:
        parts = item.name.split(".")[:-1]
        names.update(dict.fromkeys(".".join(parts[:length]) for length in range(1, len(parts) + 1)))
    return list(names)


def _within(name: str, modules: Sequence[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)


def _members(placed: Sequence[Placed], modules: Sequence[str]) -> list[Placed]:
    return [item for item in placed if _within(item.name, modules)]


def _block(item: Placed) -> str:
    """Name of the module that is a block."""
    return item.weight.name.partition("{layer}")[0] + item.label.rpartition(" ")[2]


def _kind(label: str) -> str:
    return label.rpartition(" ")[0]


def _in_words(unit: Unit, names: Sequence[str], placed: Sequence[Placed]) -> str:
    """Name a group as the person did; modules inside blocks are told apart by the kind of block."""
    words = unit if isinstance(unit, str) else " + ".join(unit)
    inside = next((x for x in placed if _within(x.name, names)), None)
    is_part = inside is not None and inside.weight.unit == "block"
    return f"{words} of {_kind(inside.label)}" if inside is not None and is_part else words


def _inside(setting: Setting, members: Sequence[Placed], stage: Sequence[Placed]) -> Inside | None:
    """Find the events of a block among which a group is used that is only a part of the block."""
    first = members[0]
    whole = [x for x in stage if x.place == first.place]
    if first.weight.unit != "block" or len({x.place for x in members}) > 1 or len(members) == len(whole):
        return None
    kind = next(kind for kind in setting.model.kinds if kind.name == _kind(first.label))
    for number, region in enumerate(kind.regions):
        if _works_in(region.name, members):
            experts = all(x.weight.group == "expert" for x in members)
            if not experts:
                return (0, number), (0, number, 99)
            if setting.torch.exchange_inside:
                return (0, number, ENTER + 1), (0, number, LEAVE - 1)
            return (0, number, INSIDE), (0, number, INSIDE + 1)
    return None


def _ends_block(setting: Setting, members: Sequence[Placed], stage: Sequence[Placed]) -> bool:
    """Whether what a group makes is what its block gives away, but for a sum with what passed it by."""
    block = in_use_order([x for x in stage if x.place == members[0].place], setting.model)
    return block[-1] in members and not all(x.weight.group == "expert" for x in members)


def _inside_backward(inside: Inside | None, *, at_once: bool) -> Inside | None:
    """The same for backward, where order (0, i, ...) becomes (1, -i, ...).

    Torch notices that the backward of a module begins when it has the gradient of what the module made. At the end of a
    block that is at once, before anything is computed again.
    """
    if inside is None:
        return None
    (_, number, *first), (_, _, last) = inside
    if not first:
        return (-2,) if at_once else (1, -number), (1, -number, 99)
    return (1, -number, ENTER + LEAVE - last), (1, -number, ENTER + LEAVE - first[0])


def _works_in(region: str, members: Sequence[Placed]) -> bool:
    if region == "experts":
        return any(x.weight.group == "expert" for x in members)
    attends = any(".self_attn." in x.name or ".attn." in x.name for x in members)
    return attends == region.startswith("attention")
