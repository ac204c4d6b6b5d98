"""The door to Hypothesis, which is needed by generators alone."""

from functools import cache
from typing import TYPE_CHECKING

from meshcost.errors import MeshcostError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from hypothesis.strategies import SearchStrategy

    Drawn = TypeVar("Drawn")
    Draw = Callable[[SearchStrategy[Drawn]], Drawn]


@cache
def strategies():  # type: ignore[no-untyped-def] # a module has no better type
    """Return ``hypothesis.strategies``; raises MeshcostError with the command to type where it is missing."""
    try:
        import hypothesis.strategies
    except ImportError:
        raise MeshcostError(
            "meshcost.testing needs Hypothesis to make jobs: pip install hypothesis."
        ) from None
    return hypothesis.strategies
