"""What each process of a trace on real processes runs: the job in a folder, as one rank."""

import pickle
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from meshcost.execute.record import record
from meshcost.execute.recording import Recording
from meshcost.execute.trace_rank import build_parts, distribute, fill, finished, kept_axes, run
from meshcost.execute.trace_world import device_axes, quietly


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
        fill(parts)
        with record(job.mesh) as recorder:
            run(parts, job, steps, options, axes)
        # Nobody leaves while another still waits for a message.
        dist.barrier()
        return finished(recorder, job)
    finally:
        dist.destroy_process_group()


def main(folder: str, rank: int) -> None:
    """Be one rank, and leave behind what was recorded, or why not."""
    place = Path(folder)
    try:
        with quietly():
            recording = be_rank(place, rank)
        part = place / f"{rank}.part"
        part.write_bytes(pickle.dumps(recording))
        part.rename(place / f"{rank}.done")
    except BaseException:
        (place / f"{rank}.failed").write_text(traceback.format_exc())
        raise
