"""Starts the local ranks and says how each one ended: loads torch once, then forks one process for each rank.

A fork without exec is not safe with the frameworks of macOS; there each rank is a program of its own and loads torch.

``python -m meshcost.execute.nursery FD0 FD1 ...``: one control socket for each rank. When its standard input closes,
whoever started it is gone, and it ends with all ranks.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading


def main(numbers: list[int], *, forks: bool = sys.platform == "linux") -> None:
    """Start one rank on each socket, and wait for them."""
    if forks:
        import meshcost.execute.worker  # noqa: F401 - loaded before the forks, so that ranks share what takes memory
    from meshcost.execute.open_files import allow_open_files

    allow_open_files()  # every rank has a socket to every other one
    started: list[subprocess.Popen[bytes]] = []
    children = {
        _forked(rank, numbers) if forks else _launched(rank, numbers[rank], started): rank
        for rank in range(len(numbers))
    }
    for number in numbers:
        os.close(number)
    _say({"processes": list(children)})
    threading.Thread(target=_end_with_parent, args=(tuple(children),), daemon=True).start()
    # To the last one, also when whoever asked is gone: a rank that nobody waits for stays as a zombie.
    while children:
        process, status = os.wait()
        if process in children:
            _say({"ended": children.pop(process), "status": os.waitstatus_to_exitcode(status)})
    os._exit(0)


def _say(message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # nobody reads any more
        os.write(1, json.dumps(message).encode() + b"\n")


def _launched(rank: int, own: int, started: list[subprocess.Popen[bytes]]) -> int:
    """Start a program; ``started`` keeps it, for one that is forgotten is waited for behind our back."""
    command = [sys.executable, "-m", "meshcost.execute.worker", str(rank), str(own)]
    started.append(
        subprocess.Popen(command, pass_fds=[own], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    )
    return started[-1].pid


def _forked(rank: int, numbers: list[int]) -> int:
    own = numbers[rank]
    process = os.fork()
    if process:
        return process
    for number in numbers:
        if number != own:
            os.close(number)
    _become(rank, own)
    raise AssertionError("unreachable")


def _become(rank: int, number: int) -> None:
    from meshcost.execute.worker import serve

    with open(os.devnull, "r+b") as nothing:  # noqa: PTH123 - what a library prints is no message of the nursery
        for stream in (0, 1):
            os.dup2(nothing.fileno(), stream)
    try:
        serve(rank, number)
    finally:
        os._exit(0)


def _end_with_parent(children: tuple[int, ...]) -> None:
    while os.read(0, 1024):
        pass
    for process in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])
