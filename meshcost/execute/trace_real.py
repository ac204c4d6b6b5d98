"""The trace on real processes: one for each rank, talking over Gloo on this machine."""

import pickle
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from meshcost.errors import ExecutionError
from meshcost.execute.recording import Recording
from meshcost.execute.trace_nursery import Nursery
from meshcost.job import Job
from meshcost.strategies.torch_options import TorchOptions

#: Kept for the next trace of this process.
_NURSERIES: list[Nursery] = []


def trace_real(job: Job, steps: int, options: TorchOptions, timeout_seconds: float) -> dict[int, Recording]:
    """Start a process for every rank and return what each of them called.

    Raises ExecutionError where a rank fails or all take too long.
    """
    with tempfile.TemporaryDirectory(prefix="meshcost-trace-") as name:
        folder = Path(name)
        (folder / "job").write_bytes(pickle.dumps((job, steps, options, timeout_seconds)))
        nursery = _NURSERIES.pop() if _NURSERIES else Nursery()
        try:
            nursery.start(folder, job.world_size)
            _wait(nursery, folder, job.world_size, timeout_seconds)
        except BaseException:
            nursery.end()
            raise
        _NURSERIES.append(nursery)
        return {rank: pickle.loads((folder / f"{rank}.done").read_bytes()) for rank in range(job.world_size)}


def _wait(nursery: Nursery, folder: Path, ranks: int, timeout_seconds: float) -> None:
    until = time.monotonic() + timeout_seconds
    running = set(range(ranks))
    while running:
        if time.monotonic() > until:
            raise ExecutionError(f"trace: the ranks have not finished after {timeout_seconds:g} s.")
        if died := nursery.died():
            raise ExecutionError(f"trace: ranks cannot be started: {died}.")
        ended = nursery.ended(seconds=0.1)
        running -= set(ended)
        _raise_failure(ended, folder)


def _raise_failure(ended: Mapping[int, int], folder: Path) -> None:
    """Say why a rank ended early, and not what followed from it on the others."""
    for rank, status in ended.items():
        if status:
            said = folder / f"{rank}.failed"
            why = said.read_text().strip().splitlines()[-1] if said.is_file() else f"exit status {status}"
            raise ExecutionError(f"trace: rank {rank} failed: {why}")
