"""What of the units that are wrapped no model has, torch refuses, or is not predicted: each in a sentence."""

from collections.abc import Iterator, Mapping, Sequence

from meshcost.strategies.data.fully_shard import modules_of
from meshcost.strategies.data.options import SHARDS_WEIGHTS
from meshcost.strategies.data.placed import Placed, placed_weights
from meshcost.strategies.setting import Setting
from meshcost.strategies.torch_options import BLOCKS, Unit
from meshcost.strategies.torch_units import unit_modules

#: Units as they are written, and the modules of each: several lists where a name stands for many.
_Named = Mapping[Unit, Sequence[tuple[str, ...]]]


def unit_problems(setting: Setting) -> Iterator[str]:
    """Say which units are no modules of the model, and which cannot be wrapped as they are."""
    units = [unit for unit in setting.torch.units if unit != BLOCKS]
    if not units or not (setting.wraps_flat or setting.parallel["data"].strategy in SHARDS_WEIGHTS):
        return
    model = setting.model
    runs = (("embedding", 1), *((model.kinds[kind].name, 1) for kind in model.pattern), ("head", 1))
    placed = placed_weights(setting, (runs,), 0)
    modules = list(dict.fromkeys([*modules_of(placed), *(["lm_head"] if model.tied else [])]))
    words = {word for unit in units for word in ((unit,) if isinstance(unit, str) else unit)}
    for word in sorted(words - {BLOCKS}):
        if not unit_modules(model, word, modules):
            ends = [name for name in modules if not any(part.isdigit() for part in name.split("."))]
            legal = ", ".join(("blocks", "embedding", "norm", "head", *ends))
            yield f"torch.units: {word} is no module of {model.name}. Choose {legal}."
    named = {unit: unit_modules(model, unit, modules) for unit in units}
    if setting.wraps_flat:
        for unit, found in named.items():
            if not isinstance(unit, str) or any(len(names) > 1 for names in found):
                yield f"torch.units: {_words(unit)} is several modules, and FullyShardedDataParallel wraps one. Name one."
                return
    if model.tied and not setting.unties and setting.size("pipeline") == 1:
        yield from _shared(setting, named, placed)
    yield from _ends(setting, named, placed)


def _shared(setting: Setting, named: _Named, placed: Sequence[Placed]) -> Iterator[str]:
    """Units that would part embedding and head, which share a weight."""
    embedding = next(x.name.rpartition(".")[0] for x in placed if x.weight.group == "embedding")
    for unit, found in named.items():
        for names in found:
            holds = {
                end: any(f"{end}.".startswith(f"{name}.") for name in names) for end in (embedding, "lm_head")
            }
            if len(set(holds.values())) == 1:
                continue
            if setting.wraps_flat:
                yield f"torch.units: {unit} shares its weight, and FullyShardedDataParallel would untie it. Leave it out."
                continue
            here, there = sorted(holds, key=lambda end: not holds[end])
            yield (
                f"torch.units: {here} shares its weight with {there}, and fully_shard refuses to part them. Write both "
                "in one unit, [embedding, head], or leave both to the root."
            )


def _ends(setting: Setting, named: _Named, placed: Sequence[Placed]) -> Iterator[str]:
    """Units that part what comes after the blocks, where the order of what they call is not predicted."""
    ends = {x.name.rpartition(".")[0] for x in placed if x.weight.unit == "head"}
    held = {
        unit: [
            name for names in found for name in names if any(f"{end}.".startswith(f"{name}.") for end in ends)
        ]
        for unit, found in named.items()
    }
    apart = [unit for unit, names in held.items() if names]
    wraps_more = any(not ends >= set(names) for names in held.values())
    said = f"torch.units: {' and '.join(map(_words, apart))} each in a unit of its own is not predicted"
    if len(apart) > 1 and setting.wraps_flat:
        yield f"{said}. Name one of them."
    elif len(apart) > 1 and setting.size("tensor") > 1:
        yield f"{said} beside tensor parallelism. Write them as one unit, [norm, head]."
    elif len(apart) > 1 and wraps_more:
        yield f"{said}. Leave one of them to the root."


def _words(unit: Unit) -> str:
    return unit if isinstance(unit, str) else " + ".join(unit)
