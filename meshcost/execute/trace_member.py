"""What each process of a trace on real processes runs: the job in a folder, as one rank."""

import pickle
import traceback
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from meshcost.execute.counters import choose_counter
from meshcost.execute.member import Member
from meshcost.execute.record import record
from meshcost.execute.recording import Recording
from meshcost.execute.trace_rank import build_parts, distribute, fill, finished, kept_axes, training_step
from meshcost.execute.trace_wire import TCP
from meshcost.execute.trace_world import device_axes, quietly


def be_rank(folder: Path, rank: int) -> Recording:
    """Run the job in ``folder`` as one rank of a real group."""
    job, steps, options, seconds = pickle.loads((folder / "job").read_bytes())
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    # Ranks meet in a file, so that no byte of their meeting is on the sockets that are counted.
    store = FileStore(str(folder / "store"), job.world_size)
    timeout = timedelta(seconds=seconds)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job.world_size, timeout=timeout)
    kind, counter = choose_counter("lo")
    member = Member(rank, store, counter, torch.device("cpu"), timeout, _to_nobody)
    everybody = tuple(range(job.world_size))
    try:
        axes = device_axes(job.mesh, kept_axes(job))
        with torch.device("meta"):
            parts = build_parts(job, rank, options)
        distribute(parts, job, options, axes)
        fill(parts)
        with record(job.mesh) as recorder:
            step = training_step(parts, job, options, axes)
            moved = [member.counted(f"step {number}", everybody, step, 1)[0] for number in range(steps)]
        # Nobody leaves while another still waits for a message.
        dist.barrier()
        recording = finished(recorder, job)
        if kind != "tcp_info":  # an interface sees all ranks of a host together
            return recording
        return replace(recording, about={**recording.about, TCP: [list(each) for each in moved]})
    finally:
        dist.destroy_process_group()


def _to_nobody(message: object) -> None:
    """Nobody asks how far this rank is."""


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
