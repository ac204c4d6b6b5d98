"""The weights of one virtual stage, each with the unit in which it is used."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from meshcost.models import Weight
from meshcost.strategies.setting import Setting

#: Runs of (unit, how many) of each virtual stage, as a program has them.
Units = Sequence[Sequence[tuple[str, int]]]

#: What the weight of a head is called that shares its numbers with the embedding of another stage.
TIED_HEAD = "lm_head.weight"


class Placed(NamedTuple):
    """A weight with its full name, the place of its unit in the stage, and the label of that unit."""

    name: str
    place: int
    label: str
    weight: Weight


def placed_weights(setting: Setting, units: Units, stage: int) -> list[Placed]:
    """Weights of one virtual stage in registration order. Places go on counting over all stages."""
    model = setting.model
    place = sum(number for runs in units[:stage] for _, number in runs)
    layer = sum(
        number for runs in units[:stage] for unit, number in runs if unit not in ("embedding", "head")
    )
    kinds = {kind.name: kind for kind in model.kinds}
    found: list[Placed] = []
    for unit, number in units[stage]:
        for _ in range(number):
            label = unit if unit in ("embedding", "head") else f"{unit} {layer}"
            weights = kinds[unit].weights if unit in kinds else _outside(setting, unit, apart=stage > 0)
            # A new weight trains even where the one that it replaces was frozen.
            trained = [replace(w, trainable=True) if setting.makes_new(w) else w for w in weights]
            found += [Placed(w.name.replace("{layer}", str(layer)), place, label, w) for w in trained]
            layer += unit in kinds
            place += 1
    return found


def _outside(setting: Setting, unit: str, *, apart: bool) -> tuple[Weight, ...]:
    """Weights at one end of the model. A tied head far from the embedding, or split as it is, is a weight of its own."""
    model = setting.model
    weights = model.unit_weights("embedding" if unit == "embedding" else "head")
    if unit == "embedding" or not (setting.unties or (model.tied and apart)):
        return weights
    words = (w for w in model.unit_weights("embedding") if w.group == "embedding")
    return (*weights, *(replace(w, name=TIED_HEAD, unit="head") for w in words))
