"""What of the units of fully_shard no model has, or torch refuses: each in a sentence."""

from collections.abc import Iterator

from meshcost.strategies.data.fully_shard import modules_of
from meshcost.strategies.data.options import SHARDS_WEIGHTS
from meshcost.strategies.data.placed import placed_weights
from meshcost.strategies.setting import Setting
from meshcost.strategies.torch_options import BLOCKS
from meshcost.strategies.torch_units import unit_modules


def unit_problems(setting: Setting) -> Iterator[str]:
    """Say which units are no modules of the model, and which would part a weight that two modules share."""
    named = [unit for unit in setting.torch.units if unit != BLOCKS]
    if setting.parallel["data"].strategy not in SHARDS_WEIGHTS or not named:
        return
    model = setting.model
    runs = (("embedding", 1), *((model.kinds[kind].name, 1) for kind in model.pattern), ("head", 1))
    placed = placed_weights(setting, (runs,), 0)
    modules = dict.fromkeys([*modules_of(placed), *(["lm_head"] if model.tied else [])])
    words = {word for unit in named for word in ((unit,) if isinstance(unit, str) else unit)}
    for word in sorted(words - {BLOCKS}):
        if not unit_modules(model, word, modules):
            ends = [name for name in modules if not any(part.isdigit() for part in name.split("."))]
            legal = ", ".join(("blocks", "embedding", "norm", "head", *ends))
            yield f"torch.units: {word} is no module of {model.name}. Choose {legal}."
    if not model.tied or setting.unties or setting.size("pipeline") > 1 or setting.wraps_flat:
        return
    embedding = next(x.name.rpartition(".")[0] for x in placed if x.weight.group == "embedding")
    for unit in named:
        for names in unit_modules(model, unit, modules):
            holds = {
                end: any(f"{end}.".startswith(f"{name}.") for name in names) for end in (embedding, "lm_head")
            }
            if len(set(holds.values())) > 1:
                here, there = sorted(holds, key=lambda end: not holds[end])
                yield (
                    f"torch.units: {here} shares its weight with {there}, and fully_shard refuses to part them. Write both "
                    "in one unit, [embedding, head], or leave both to the root."
                )
