"""Starts the ranks of a trace on real processes: loads torch once, then forks a process for each rank of each job.

    python -m meshcost.execute.trace_nursery                  reads jobs from its standard input, until that closes
    python -m meshcost.execute.trace_nursery FOLDER RANK      is one rank itself, where a fork is not safe

Loading torch takes seconds on each core, so one nursery is kept for the next job until this process ends.
"""

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

#: A fork without exec is not safe with the frameworks of macOS.
FORKS = sys.platform == "linux"

#: How often the nursery looks whether a rank has ended.
_LOOK_SECONDS = 0.02


class Nursery:
    """The process that starts ranks, seen from the one that wants them."""

    def __init__(self) -> None:
        """Start it; it has torch loaded some seconds later."""
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self.process = _started(self.complaints)
        atexit.register(self.end)

    def start(self, folder: Path, ranks: int) -> None:
        """Start all ranks of the job in a folder."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"folder": str(folder), "ranks": ranks}).encode() + b"\n")
        self.process.stdin.flush()

    def ended(self, seconds: float) -> dict[int, int]:
        """Exit statuses of ranks that have ended, by rank, after waiting so long for the first of them."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return {}
        line = self.process.stdout.readline()
        return {row["rank"]: row["status"] for row in ([json.loads(line)] if line else [])}

    def died(self) -> str | None:
        """Why it has ended by itself, if it has."""
        if self.process.poll() is None:
            return None
        self.complaints.seek(0)
        said = self.complaints.read().decode(errors="replace").strip()
        return said.splitlines()[-1] if said else f"exit status {self.process.returncode}"

    def end(self) -> None:
        """End it and all ranks, whatever they are doing."""
        atexit.unregister(self.end)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.complaints):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _started(complaints: IO[bytes]) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", "meshcost.execute.trace_nursery"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, bufsize=0,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, start_new_session=True,
    )  # fmt: skip


def serve() -> None:
    """Read jobs from standard input, start their ranks, and write how each one ended."""
    import meshcost.execute.trace_member  # noqa: F401 - loaded before the forks

    children: dict[int, int] = {}
    with selectors.DefaultSelector() as selector, os.fdopen(0, "rb", buffering=0) as jobs:
        selector.register(jobs, selectors.EVENT_READ)
        while True:
            # Looks instead of waiting for a signal: a handler could run between a fork and what is noted of it.
            if selector.select(_LOOK_SECONDS if children else None):
                line = jobs.readline()
                if not line:
                    break
                job = json.loads(line)
                children |= {_start(job["folder"], rank): rank for rank in range(job["ranks"])}
            for process in [*children]:
                done, status = os.waitpid(process, os.WNOHANG)
                if done:
                    row = {"rank": children.pop(process), "status": os.waitstatus_to_exitcode(status)}
                    os.write(1, json.dumps(row).encode() + b"\n")
    os.killpg(0, signal.SIGKILL)  # whoever asked is gone


def _start(folder: str, rank: int) -> int:
    if not FORKS:
        command = [sys.executable, "-m", "meshcost.execute.trace_nursery", folder, str(rank)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        _be_rank(folder, rank)
        status = 0
    finally:
        os._exit(status)


def _be_rank(folder: str, rank: int) -> None:
    from meshcost.execute.trace_member import main

    main(folder, rank)


if __name__ == "__main__":
    if sys.argv[1:]:
        _be_rank(sys.argv[1], int(sys.argv[2]))
    else:
        serve()
