"""A smaller model of a job's family: fewer blocks, and widths halved as long as the layout allows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshcost.errors import JobError, MeshcostError
from meshcost.job import Job
from meshcost.models import Model

#: Widths are halved down to this, and a size that is scaled has at most so many weights on a stage.
_LEAST_WIDTH, _SCALED_WEIGHTS = 8, 2**22


def scaled(job: Job) -> Job:
    """The same job with a smaller model of its family: fewer blocks, and widths halved as long as the layout allows.

    Raises JobError where no smaller model divides as the layout wants.
    """
    model = job.setting.model
    short = replace(model, pattern=_pattern(model.pattern, job.program.schedule.virtual_stages))
    found = None
    for times in range(1, 16):
        widths = {
            symbol: size // 2**times if _is_width(symbol.name, size) else size
            for symbol, size in model.dims.items()
        }
        small = replace(short, dims=widths)
        try:
            tried = Job(**{**_fields(job), "model": small})
        except MeshcostError:
            break
        if any(
            _is_width(symbol.name, model.dims[symbol]) and size < _LEAST_WIDTH
            for symbol, size in widths.items()
        ):
            break
        found = tried
        if small.weights_total < _SCALED_WEIGHTS:
            break
    if found is None:
        raise JobError(f"trace: {model.name} cannot be made smaller for this layout. Leave --scale out.")
    return found


def _fields(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in type(job).model_fields if name in job.model_fields_set}


def _is_width(name: str, size: int) -> bool:
    return name in WIDTHS and size > 1


#: Symbols of widths; heads, experts and blocks are counted, not measured.
WIDTHS = ("h", "f", "f_e", "f_s", "V", "d_head", "d_v", "d_nope", "d_rope", "r_q", "r_kv")


def _pattern(pattern: Sequence[int], stages: int) -> tuple[int, ...]:
    """Two blocks, or one for each stage if that is more, taken evenly from all: the first and the last are among them.

    >>> _pattern((0, 0, 0, 1, 1, 1, 1, 1), stages=1), _pattern((0,) * 8, stages=4)
    ((0, 1), (0, 0, 0, 0))
    """
    number = min(len(pattern), -(-2 // stages) * stages)
    return tuple(pattern[place * (len(pattern) - 1) // max(1, number - 1)] for place in range(number))


def difference(model: Model, small: Model) -> str:
    """Say what became smaller."""
    sizes = ", ".join(
        f"{symbol.name} {model.dims[symbol]:,} to {size:,}"
        for symbol, size in small.dims.items()
        if size != model.dims[symbol]
    )
    return f"Scaled down, for prediction and trace alike: {model.layers} blocks to {small.layers}; {sizes}."
