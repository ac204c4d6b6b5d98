"""What a strategy is: options a person may write, and whether they are legal here.

A package of your own can bring one: subclass Strategy, give it an ``axis`` name and ``events``, and list the class
under the entry point ``meshcost.strategies`` with the axis as its name. It is then legal under ``parallel`` in every
job file.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, get_args

from pydantic import GetJsonSchemaHandler, model_validator
from pydantic_core import PydanticCustomError

from meshcost.errors import shown
from meshcost.event import Event
from meshcost.strategies.setting import Options, Setting, Size
from meshcost.strategies.view import View


class Strategy(Options):
    """One axis of a layout.

    ``size`` ranks along the axis. ``splits_batch`` says whether they divide the global batch among themselves.
    """

    axis: ClassVar[str]
    splits_batch: ClassVar[bool] = False

    size: Size = 1

    @model_validator(mode="before")
    @classmethod
    def _size_alone(cls, given: Any) -> Any:
        """Read ``tensor: 8`` as ``tensor: {size: 8}``."""
        if isinstance(given, Mapping | Strategy):
            return given
        if isinstance(given, int) and not isinstance(given, bool):
            return {"size": given}
        named = [
            f"{name}: {given}, "
            for name, field in cls.model_fields.items()
            if given in get_args(field.annotation)
        ]
        options = f"{{{''.join(named[:1])}size: 2}}"
        problem = (
            f"{shown(given)} is not legal. Write a whole number of ranks, as 2, or options, as {options}."
        )
        raise PydanticCustomError("problems", "{first}", {"first": problem, "problems": [problem]})

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Allow the size alone in the schema, too."""
        return {"anyOf": [{"type": "integer", "minimum": 1, "description": "its size"}, handler(core_schema)]}

    def problems(self, setting: Setting) -> Iterator[str]:
        """Yield one sentence for each reason why this cannot be done: path, value, why, legal choices."""
        yield from ()

    def warnings(self) -> Iterator[str]:
        """Yield one sentence for each thing that can be done, but is hardly meant."""
        yield from ()

    def events(self, view: View) -> Iterator[Event]:
        """Yield what this strategy calls in one step; strategies of this package have a profile instead."""
        raise NotImplementedError(f"{type(self).__name__} has to write its events.")
