"""The trace on real processes: one for each rank, talking over Gloo on this machine.

python -m meshcost.execute.trace_real FOLDER RANK      what each process runs; the folder holds the job
"""

import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from meshcost.errors import ExecutionError, JobError
from meshcost.execute.record import record
from meshcost.execute.recording import Recording
from meshcost.execute.trace_rank import build_parts, distribute, finished, kept_axes, run
from meshcost.execute.trace_world import device_axes, quietly
from meshcost.job import Job
from meshcost.strategies.torch_options import TorchOptions

#: No trace starts more processes than this.
MOST_PROCESSES = 64


def trace_real(job: Job, steps: int, options: TorchOptions, timeout_seconds: float) -> dict[int, Recording]:
    """Start a process for every rank and return what each of them called.

    Raises JobError for more ranks than one machine should start, ExecutionError where a rank fails or all take too long.
    """
    if job.world_size > MOST_PROCESSES:
        raise JobError(
            f"trace: {job.world_size} real ranks are more than {MOST_PROCESSES}, the most that are started."
        )
    with tempfile.TemporaryDirectory(prefix="meshcost-trace-") as name:
        folder = Path(name)
        (folder / "job").write_bytes(pickle.dumps((job, steps, options)))
        processes = [_start(folder, rank) for rank in range(job.world_size)]
        try:
            _wait(processes, folder, timeout_seconds)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return {rank: pickle.loads((folder / f"{rank}.done").read_bytes()) for rank in range(job.world_size)}


def _start(folder: Path, rank: int) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "meshcost.execute.trace_real", str(folder), str(rank)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, timeout_seconds: float) -> None:
    until = time.monotonic() + timeout_seconds
    while any(process.poll() is None for process in processes):
        if time.monotonic() > until:
            raise ExecutionError(f"trace: the ranks have not finished after {timeout_seconds:g} s.")
        _raise_failure(processes, folder)
        time.sleep(0.05)
    _raise_failure(processes, folder)


def _raise_failure(processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    for rank, process in enumerate(processes):
        if process.poll():
            said = folder / f"{rank}.failed"
            why = (
                said.read_text().strip().splitlines()[-1]
                if said.is_file()
                else f"exit status {process.returncode}"
            )
            raise ExecutionError(f"trace: rank {rank} failed: {why}")


def be_rank(folder: Path, rank: int) -> Recording:
    """Run the job in ``folder`` as one rank of a real group."""
    job, steps, options = pickle.loads((folder / "job").read_bytes())
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=job.world_size
    )
    try:
        axes = device_axes(job.mesh, kept_axes(job))
        with torch.device("meta"):
            parts = build_parts(job, rank, options)
        distribute(parts, job, options, axes)
        for part in parts:
            part.to_empty(device="cpu")
            with torch.no_grad():
                for weight in part.parameters():
                    weight.normal_(std=0.02)
        with record(job.mesh) as recorder:
            run(parts, job, steps, options, axes)
        # Nobody leaves while another still waits for a message.
        dist.barrier()
        return finished(recorder, job)
    finally:
        dist.destroy_process_group()


def main(folder: str, rank: str) -> None:
    """Be one rank, and leave behind what was recorded, or why not."""
    place = Path(folder)
    try:
        with quietly():
            recording = be_rank(place, int(rank))
        part = place / f"{rank}.part"
        part.write_bytes(pickle.dumps(recording))
        part.rename(place / f"{rank}.done")
    except BaseException:
        (place / f"{rank}.failed").write_text(traceback.format_exc())
        raise


__all__ = ["MOST_PROCESSES", "be_rank", "trace_real"]

if __name__ == "__main__":
    main(*sys.argv[1:])
