"""What a launcher such as torchrun says about this process, in environment variables. Knows no torch."""

import os

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched() -> bool:
    """Whether a launcher has started this process as one of several ranks."""
    return all(name in os.environ for name in _VARIABLES) and os.environ["WORLD_SIZE"] != "1"


def launched_here() -> int:
    """This rank."""
    return int(os.environ["RANK"])


def launched_ranks(*, world: bool = False) -> int:
    """Ranks on this host, or in the whole world; 0 where no launcher says so."""
    return int(os.environ.get("WORLD_SIZE" if world else "LOCAL_WORLD_SIZE", "0"))


def one_host() -> bool:
    """Whether all ranks are on this host."""
    return not launched() or launched_ranks() == launched_ranks(world=True)
