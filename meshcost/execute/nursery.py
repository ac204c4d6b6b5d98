"""Starts the local ranks: loads torch once, then forks one process for each rank, and says how each one ended.

``python -m meshcost.execute.nursery FD0 FD1 ...``: one control socket for each rank. When its standard input closes,
whoever started it is gone, and it ends with all ranks.
"""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading


def main(numbers: list[int]) -> None:
    """Start one rank on each socket, and wait for them."""
    import meshcost.execute.worker  # noqa: F401 - loaded before the forks, so that ranks share what takes memory

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    children = {_start(rank, numbers): rank for rank in range(len(numbers))}
    for number in numbers:
        os.close(number)
    threading.Thread(target=_end_with_parent, args=(tuple(children),), daemon=True).start()
    while children:
        process, status = os.wait()
        if process in children:
            ended = {"ended": children.pop(process), "status": os.waitstatus_to_exitcode(status)}
            sys.stdout.write(json.dumps(ended) + "\n")
            sys.stdout.flush()


def _start(rank: int, numbers: list[int]) -> int:
    own = numbers[rank]
    if sys.platform != "linux":  # a fork without exec is not safe with the frameworks of macOS
        command = [sys.executable, "-m", "meshcost.execute.worker", str(rank), str(own)]
        return subprocess.Popen(command, pass_fds=[own]).pid
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
    os._exit(0)


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])
