"""What a launcher such as torchrun says about this process, in environment variables. Knows no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from meshcost.errors import ExecutionError

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Launched:
    """This process as one rank of a launcher: where ranks meet, how many there are, how many on this host.

    ``local_ranks`` is 0 where the launcher does not say.
    """

    rank: int
    ranks: int
    host: str
    port: int
    local_rank: int
    local_ranks: int

    @property
    def where(self) -> str:
        """The address at which ranks meet."""
        return f"{self.host}:{self.port}"


def launch(environment: Mapping[str, str] | None = None) -> Launched | None:
    """What a launcher says; None if none has started this process as one of several ranks.

    Raises ExecutionError, with a sentence for each variable, for what no launcher says.

    >>> two = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    >>> launch(two).rank, launch({**two, "WORLD_SIZE": "1"}), launch({})
    (1, None, None)
    """
    said = os.environ if environment is None else environment
    if any(name not in said for name in _VARIABLES) or said["WORLD_SIZE"].strip() == "1":
        return None
    problems: list[str] = []

    def number(name: str, least: int, most: int, default: int) -> int:
        text = said.get(name, str(default)).strip()
        # Ten digits at most: more are too large everywhere, and int() takes long over very many.
        if text.isascii() and text.isdigit() and len(text) <= len(str(_MOST)) and least <= int(text) <= most:
            return int(text)
        legal = f"{least} to {most}" if most < _MOST - 1 else f"{least} or more"
        problems.append(
            f"{name}={text[:60]} in the environment: a launcher sets a number, {legal}. Correct it, or unset RANK to start "
            "ranks without a launcher."
        )
        return default

    ranks = number("WORLD_SIZE", 1, _MOST, _MOST)
    rank = number("RANK", 0, ranks - 1, 0)
    port = number("MASTER_PORT", 1, 65535, 1)
    local_ranks = number("LOCAL_WORLD_SIZE", 1, ranks, 1) if "LOCAL_WORLD_SIZE" in said else 0
    local_rank = number("LOCAL_RANK", 0, (local_ranks or ranks) - 1, 0) if "LOCAL_RANK" in said else 0
    if problems:
        raise ExecutionError(problems)
    return Launched(rank, ranks, said["MASTER_ADDR"], port, local_rank, local_ranks)


def launched() -> bool:
    """Whether a launcher has started this process as one of several ranks."""
    return launch() is not None


def launched_here() -> int:
    """This rank; 0 without a launcher."""
    found = launch()
    return found.rank if found else 0


def launched_ranks(*, world: bool = False) -> int:
    """Ranks on this host, or in the whole world; 0 where no launcher says so."""
    found = launch()
    if found is None:
        return 0
    return found.ranks if world else found.local_ranks


def one_host() -> bool:
    """Whether all ranks are on this host."""
    found = launch()
    return found is None or found.local_ranks == found.ranks
