"""Documents that nobody should write: what a job file may hold when it is wrong."""

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from meshcost.job import Job
from meshcost.layout import Parallel
from meshcost.strategies import STRATEGIES
from meshcost.testing.hypotheses import strategies
from meshcost.testing.layouts import legal_documents

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from meshcost.testing.hypotheses import Draw

_WORDS = (
    "fsdp",
    "ulysses",
    "dualpipe",
    "bf16",
    "fp8_block128",
    "full",
    "llama-3-8b",
    "h100-dgx",
    "tree",
    "",
    "self",
    "\x00",
    "é" * 50,
)
_NUMBERS = (0, -1, 1, 2, 3, 7, 2**31, 2**63, 10**40, 10**4000, 0.5, -0.0, 1e308, float("inf"), float("nan"))


def job_documents() -> "SearchStrategy[Any]":
    """Generate plain data as a job file may hold it: most of it illegal, much of it nearly legal.

    Half are legal documents with a few places spoilt (a value of another type or size, a field left out, an unknown
    one put in), half are made of whatever YAML can say.

    >>> job_documents() is not None
    True
    """
    st = strategies()
    return st.one_of(st.composite(_spoilt)(), _anything())


def _names() -> tuple[str, ...]:
    """Every field name of a job, wherever it belongs."""
    options = [name for strategy in STRATEGIES.values() for name in strategy.model_fields]
    return tuple(
        dict.fromkeys([*Job.model_fields, *Parallel.model_fields, *options, "sequence", "rank", "weights"])
    )


def _scalars() -> "SearchStrategy[Any]":
    st = strategies()
    plain = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=20),
        st.dates(),
        st.binary(max_size=4),
    )
    return st.one_of(st.sampled_from(_WORDS), st.sampled_from(_NUMBERS), plain)


def _anything() -> "SearchStrategy[Any]":
    st = strategies()
    keys = st.one_of(
        st.sampled_from(_names()), st.text(max_size=8), st.integers(-3, 3), st.none(), st.booleans()
    )

    def larger(inside: Any) -> Any:
        return st.one_of(st.lists(inside, max_size=4), st.dictionaries(keys, inside, max_size=5))

    return st.recursive(_scalars(), larger, max_leaves=20)


def _spoilt(draw: "Draw[Any]") -> Any:
    st = strategies()
    document = deepcopy(draw(legal_documents()))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(_places(document)))
        if not place:
            continue
        holder: Any = document
        for step in place[:-1]:
            holder = holder[step]
        action = draw(st.sampled_from(("change", "change", "leave out", "add")))
        if action == "change":
            holder[place[-1]] = draw(_anything())
        elif action == "leave out":
            del holder[place[-1]]
        elif isinstance(holder, dict):
            holder[draw(st.sampled_from(_names()))] = draw(_scalars())
    return document


def _places(document: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside a document."""
    inside: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        inside = list(document.items())
    elif isinstance(document, list):
        inside = list(enumerate(document))
    found = [here] if here else [()]
    for key, value in inside:
        found.extend(_places(value, (*here, key)))
    return found
