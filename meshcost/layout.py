"""A layout: one strategy for each axis, and the order of the axes in the rank number."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from math import prod

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from meshcost.mesh import LARGEST_WORLD
from meshcost.strategies import (
    STRATEGIES,
    ContextParallel,
    DataParallel,
    ExpertParallel,
    PipelineParallel,
    Strategy,
    TensorParallel,
)
from meshcost.strategies.setting import Size

#: Axes in the rank number, innermost first, unless a job says otherwise.
ORDER = ("tensor", "context", "data", "pipeline")

#: Where packages list the strategies that they bring.
ENTRY_POINTS = "meshcost.strategies"


class Parallel(BaseModel):
    """A layout: one strategy for each axis, and the order of the axes in the rank number, innermost first."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    data: DataParallel = DataParallel()
    tensor: TensorParallel = TensorParallel()
    pipeline: PipelineParallel = PipelineParallel()
    context: ContextParallel = ContextParallel()
    expert: ExpertParallel = ExpertParallel()
    order: tuple[str, ...] | None = None
    pad_vocabulary: Size | None = None

    @model_validator(mode="after")
    def _plug_in(self) -> "Parallel":
        """Read the options of strategies that other packages bring."""
        extra = self.__pydantic_extra__ or {}
        known = {point.name: point for point in entry_points(group=ENTRY_POINTS)} if extra else {}
        problems: list[InitErrorDetails] = []
        for name, options in extra.items():
            if name not in known:
                problems.append({"type": "extra_forbidden", "loc": (name,), "input": options})
                continue
            try:
                extra[name] = known[name].load().model_validate(options)
            except ValidationError as error:
                problems.extend(_under(name, error))
        if problems:
            raise ValidationError.from_exception_data("Parallel", problems)
        return self

    @model_validator(mode="after")
    def _bounded(self) -> "Parallel":
        """Refuse too many ranks before any strategy looks for the divisors of their number."""
        world = prod(s.size for axis, s in self.strategies.items() if axis != "expert")
        if world > LARGEST_WORLD:
            problem = f"{world} ranks are more than {LARGEST_WORLD}, the most that are computed."
            raise PydanticCustomError("problems", "{problem}", {"problem": problem, "problems": [problem]})
        return self

    @property
    def strategies(self) -> dict[str, Strategy]:
        """Every axis with its strategy; plug-ins last."""
        own = {axis: getattr(self, axis) for axis in STRATEGIES}
        return own | {
            axis: s for axis, s in (self.__pydantic_extra__ or {}).items() if isinstance(s, Strategy)
        }

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes that multiply up to the world, innermost first."""
        plugged = tuple(axis for axis in self.strategies if axis not in STRATEGIES)
        return self.order if self.order is not None else (*ORDER[:-1], *plugged, ORDER[-1])

    def problems(self) -> Iterator[str]:
        """Say what is wrong with the order."""
        needed = sorted(axis for axis in self.strategies if axis != "expert")
        if sorted(self.axes) != needed:
            yield f"parallel.order: {list(self.axes)} has to name each of {', '.join(needed)} once."


def _under(name: str, error: ValidationError) -> Iterator[InitErrorDetails]:
    """Put the name of a strategy before every path that is wrong in its options."""
    for item in error.errors():
        kind = PydanticCustomError(item["type"], item["msg"], item.get("ctx"))
        yield {"type": kind, "loc": (name, *item["loc"]), "input": item["input"]}
