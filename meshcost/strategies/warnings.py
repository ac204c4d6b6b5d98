"""What a job may ask for, but hardly means: said beside its bill."""

from collections.abc import Iterator

from meshcost import symbols as sym
from meshcost.strategies.data.options import SHARDS_WEIGHTS
from meshcost.strategies.data.padding import surprises
from meshcost.strategies.setting import Setting
from meshcost.strategies.torch_readers import unread_options
from meshcost.strategies.view import View


def warnings(view: View) -> Iterator[str]:
    """Say what of a layout, of a model and of the options of torch a person may not have meant."""
    setting = view.setting
    for strategy in setting.parallel.values():
        yield from strategy.warnings()
    yield from _out_of_model(setting)
    if setting.framework == "textbook" and setting.torch.model_fields_set:
        yield "torch: its options change nothing here: they hold under framework: torch."
    if setting.framework == "torch":
        yield from unread_options(setting)
        if setting.parallel["data"].strategy in SHARDS_WEIGHTS and not setting.wraps_flat:
            yield from surprises(view)


def _out_of_model(setting: Setting) -> Iterator[str]:
    model, length = setting.model, setting.batch.sequence
    positions = model.dims.get(sym.s_max)
    if positions is not None and length > positions:
        yield f"batch.sequence: {model.name} has no position for the {length - positions:,} tokens after {positions:,}."
    if setting.framework == "textbook" and not any(weight.trainable for weight in model.distinct):
        yield "freeze: no weight is left to train, yet a backward pass is billed."
