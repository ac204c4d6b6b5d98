"""Every error a person can meet, as one tree.

    MeshcostError              anything meshcost refuses; the command line prints it and exits 2
    |-- FormulaError           a formula was asked for a number it cannot give
    |-- ModelError             a model is unknown, or its configuration contradicts itself
    |-- JobError               a job file does not parse, or asks for a layout that cannot exist
    |-- LedgerError            a ledger cannot be read, or two ledgers cannot be compared
    |-- ExecutionError         ranks could not be started, or one failed, hung or died while it ran
    `-- UnknownAlgorithm       no such algorithm, or it does not perform this operation

One error may hold several problems: a file is read to the end and everything wrong with it is said at once.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class MeshcostError(Exception):
    """Base of all errors; holds one clear sentence per problem.

    >>> str(MeshcostError("job.yaml: no such file."))
    'job.yaml: no such file.'
    >>> MeshcostError(["first.", "second."]).problems
    ('first.', 'second.')
    """

    def __init__(self, problems: str | Iterable[str]) -> None:
        """Take one sentence or several; each says where, what, why and what would be legal."""
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))

    def located(self, where: str) -> "MeshcostError":
        """Return the same error with ``where`` (a file, a command) put before every sentence.

        >>> str(JobError("batch: missing.").located("job.yaml"))
        'job.yaml: batch: missing.'
        """
        return type(self)(f"{where}: {problem}" for problem in self.problems)


class FormulaError(MeshcostError):
    """A formula has a symbol without a value, or its value is not a whole number."""


class ModelError(MeshcostError):
    """A model is not in the catalogue, its family is not known, or its fields contradict each other."""


class JobError(MeshcostError):
    """A job file cannot be read, has unknown fields, or describes a layout that cannot exist."""


class LedgerError(MeshcostError):
    """A ledger file is not one, or a rank or stage that was asked for does not exist."""


class UnknownAlgorithm(MeshcostError):
    """The named algorithm does not exist, or does not perform the operation asked of it."""


class ExecutionError(MeshcostError):
    """Ranks could not be started, or one of them failed, hung or died; says which one, and in which operation."""


#: What a terminal obeys, or what makes text look like other text: control characters but for tab and line feed, marks of
#: direction and of no width, and halves of pairs.
_UNSHOWN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ud800-\\udfff]"
)


def printable(text: str) -> str:
    r"""Write out what a terminal would obey: all that came from a file is printed through this.

    >>> printable("a\x1b[2J\u202eb")
    'a\\x1b[2J\\u202eb'
    """
    return _UNSHOWN.sub(lambda found: ascii(found[0])[1:-1], text)


def shortened(text: str, most: int = 60) -> str:
    """Quote no more of a text of unknown length than a sentence holds.

    >>> shortened("12345678", 7), shortened("1234567", 7)
    ('1234...', '1234567')
    """
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shown(value: Any) -> str:
    """Write a value as a file has it, shortly.

    >>> shown(True), shown(None), shown("2"), shown(2.0)
    ('true', 'null', "'2'", '2.0')
    """
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    try:
        return shortened(repr(value))
    except ValueError:  # Python writes no whole number of more than 4300 digits
        return "a number of thousands of digits"


def not_known(value: str, legal: Iterable[str]) -> str:
    """Say that a name is not one of a few legal ones, which there are, and which is nearest.

    >>> not_known("strat", ("stage", "strategy"))
    "'strat' is not known. Choose stage or strategy. Did you mean strategy?"
    """
    *most, last = legal
    near = get_close_matches(value, [*most, last], 1, cutoff=0.65)
    hint = f" Did you mean {near[0]}?" if near else ""
    choices = f"{', '.join(most)} or {last}" if most else last
    return f"{value[:60]!r} is not known. Choose {choices}.{hint}"
