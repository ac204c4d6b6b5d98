"""How many files, and so sockets, a process may have open: many ranks need more than a shell allows at first."""

import resource

from meshcost.errors import ExecutionError

#: macOS calls its limit infinite and takes no more than this (setrlimit(2) there, OPEN_MAX).
_MOST_WHERE_INFINITE = 10_240


def allow_open_files(number: int | None = None) -> None:
    """Raise this process's limit to ``number``, or as far as it goes; one that is high enough stays.

    Raises ExecutionError if ``number`` is more than may be had.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_WHERE_INFINITE if hard == resource.RLIM_INFINITY else hard
    wanted = most if number is None else number
    if wanted > most:
        raise ExecutionError(
            f"so many ranks take {wanted:,} open files, and {most:,} are allowed: use fewer ranks, or raise ulimit -Hn."
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
