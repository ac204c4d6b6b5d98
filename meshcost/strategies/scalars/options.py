"""Small calls: whether a step clips gradients by their global norm, and whether it reports a mean loss."""

from typing import Annotated, Literal

from pydantic import Field

from meshcost.strategies.setting import Options

ScalarDtype = Literal["fp64", "int64", "fp32", "int32"]

#: The data type of one number, or of several that travel together, with their number.
Reported = ScalarDtype | tuple[ScalarDtype, Annotated[int, Field(strict=True, ge=1, le=2**30)]]


class Scalars(Options):
    """Numbers that a step adds up over ranks. The norm and the loss, of four bytes each, are on unless switched off.

    ``at_start`` and ``at_end`` are what a training loop counts and reports besides: for each of them its data type, or
    data type and how many (``[fp32, 40]``: tokens of 40 experts). What is counted at the start is added up over the
    ranks that read different sequences (data), before context parallelism cuts these; what is reported at the end, over all
    ranks that computed different tokens. One call each.
    """

    gradient_norm: bool = True
    loss: bool = True
    at_start: tuple[Reported, ...] = ()
    at_end: tuple[Reported, ...] = ()
