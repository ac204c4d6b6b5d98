"""Which GPUs there are, and what a backend can mean with them. Knows no torch; asks the driver's own tool."""

import os
import shutil
import subprocess

from meshcost.errors import ExecutionError
from meshcost.execute.launcher import launched, launched_ranks

_ONE_GPU = (
    "One GPU: all ranks share it, and Gloo moves their CUDA tensors through the memory of the host. This shows that results "
    "are right and what Gloo sends; it says nothing about NCCL, NVLink or the speed of a network."
)
_NCCL = (
    "NCCL: bytes are those of NVLink (NVML) and InfiniBand counters where they exist; the algorithm is NCCL's own choice, "
    "read from its log. This path has not been run by its authors on GPUs."
)


def count_gpus() -> int:
    """Number of NVIDIA GPUs that this process may use; 0 without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    listed = _listed()
    return (
        listed if visible is None else min(listed, len([name for name in visible.split(",") if name.strip()]))
    )


def _listed() -> int:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def choose_device(backend: str, gpus: int | None = None) -> tuple[str, str, str]:
    """Return the backend and device that ranks really use, and what has to be said about it.

    Raises ExecutionError for a backend that does not exist, or for NCCL without a GPU.

    >>> choose_device("gloo"), choose_device("nccl", gpus=1)[:2], choose_device("nccl", gpus=8)[:2]
    (('gloo', 'cpu', ''), ('gloo', 'cuda:0'), ('nccl', 'cuda'))
    """
    if backend == "gloo":
        return "gloo", "cpu", ""
    if backend != "nccl":
        raise ExecutionError(f"--backend {backend}: choose gloo or nccl.")
    gpus = count_gpus() if gpus is None else gpus
    if gpus == 0:
        raise ExecutionError(
            "--backend nccl needs a GPU, and nvidia-smi lists none here. Use --backend gloo."
        )
    if gpus == 1 and not launched():
        return "gloo", "cuda:0", _ONE_GPU
    if launched_ranks() > gpus:
        raise ExecutionError(
            f"--backend nccl needs a GPU for each rank: the launcher has started {launched_ranks()} ranks on this host, "
            f"which has {gpus}. Use --nproc-per-node {gpus}."
        )
    return "nccl", "cuda", _NCCL


def check_ranks(ranks: int, gpus: int | None = None) -> None:
    """Raise ExecutionError unless each of the local ranks of NCCL has a GPU of its own."""
    gpus = count_gpus() if gpus is None else gpus
    if ranks > gpus:
        raise ExecutionError(
            f"--backend nccl needs a GPU for each rank: {ranks} ranks, and {gpus} GPUs here. Choose {gpus} ranks or fewer, "
            "or run it under torchrun on more hosts."
        )
