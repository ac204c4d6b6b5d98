"""Command lines of other programs that measure the same calls, to compare figures on the same machines."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from meshcost.errors import ExecutionError
from meshcost.execute.plan import SPLIT, Case

#: Program of nccl-tests for each operation; its sizes are ours (NVIDIA/nccl-tests@a0b82b2, README.md and src/*.cu).
_NCCL_TESTS: Mapping[str, str] = MappingProxyType(
    {
        "all_reduce": "all_reduce_perf",
        "all_gather": "all_gather_perf",
        "reduce_scatter": "reduce_scatter_perf",
        "all_to_all": "alltoall_perf",
        "broadcast": "broadcast_perf",
        "reduce": "reduce_perf",
        "gather": "gather_perf",
        "scatter": "scatter_perf",
    }
)
#: Collective of PARAM for each operation, and its sizes are ours (facebookresearch/param@1e115ff, train/comms/pt).
_PARAM: Mapping[str, str] = MappingProxyType(
    {
        "all_reduce": "--collective all_reduce",
        "all_gather": "--collective all_gather_base",
        "reduce_scatter": "--collective reduce_scatter_base",
        "all_to_all": "--collective all_to_all",
        "broadcast": "--collective broadcast",
        "reduce": "--collective reduce",
        "gather": "--collective gather",
        "scatter": "--collective scatter",
        "send_recv": "--pt2pt one2one --src-ranks 0 --dst-ranks 1",
    }
)
_NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType({"nccl-tests": _NCCL_TESTS, "param": _PARAM})
#: Why an operation has no line.
_LACKING: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        (
            "nccl-tests",
            "send_recv",
        ): "sendrecv_perf sends from every rank at once, here one rank sends to one other",
        ("nccl-tests", "barrier"): "nccl-tests has no program for it",
        ("param", "barrier"): "comms.py does not measure it",
    }
)
#: GPUs that one process of nccl-tests drives, and waits for; more ranks are processes, which its build with MPI=1 can
#: start. Of their times it reports the mean, unless -a 3 asks for the slowest, which is what our rows have.
_ONE_PROCESS = 8
#: nccl-tests cuts a chunk to whole units of so many bytes.
_UNIT_BYTES = 16


def commands(planned: Iterable[Case], tool: str, *, iterations: int, notes: Iterable[str] = ()) -> list[str]:
    """Write one command line for each operation, number of ranks and size, and a comment where there is none.

    ``notes`` stand above them, as comments. Raises ExecutionError for another tool.

    >>> commands([Case("all_reduce", (0, 1), 1048576), Case("barrier", (0, 1), 0)], "nccl-tests", iterations=3)
    ['./build/all_reduce_perf -b 1048576 -e 1048576 -g 2 -d float -n 3 -c 1', '# barrier: nccl-tests has no program for it']
    """
    if tool not in _NAMES:
        raise ExecutionError(f"--export {tool}: choose nccl-tests or param.")
    lines = dict.fromkeys(_line(case, tool, iterations) for case in planned)
    return [*(f"# {note}" for note in notes), *lines]


def _line(case: Case, tool: str, iterations: int) -> str:
    if case.algorithm != "native":
        return f"# {case.op} as {case.algorithm}: {tool} runs what its library chooses"
    if case.op not in _NAMES[tool]:
        return f"# {case.op}: {_LACKING[tool, case.op]}"
    name = _NAMES[tool][case.op]
    return (_nccl_tests if tool == "nccl-tests" else _param)(name, case, iterations)


def _nccl_tests(program: str, case: Case, iterations: int) -> str:
    size, start, gpus, slowest = case.payload_bytes, "", case.ranks, ""
    if case.ranks > _ONE_PROCESS:
        start, gpus, slowest = f"mpirun -np {case.ranks} -N {_ONE_PROCESS} ", 1, " -a 3"
    line = f"{start}./build/{program} -b {size} -e {size} -g {gpus} -d float -n {iterations} -c 1{slowest}"
    taken = size // (_UNIT_BYTES * case.ranks) * (_UNIT_BYTES * case.ranks) if case.op in SPLIT else size
    return line if taken == size else f"{line}  # cuts chunks to whole {_UNIT_BYTES} B, so it takes {taken} B"


def _param(name: str, case: Case, iterations: int) -> str:
    size, start = case.payload_bytes, f"mpirun -np {case.ranks} ./comms.py --master-ip 127.0.0.1"
    return f"{start} --b {size} --e {size} --f 2 --n {iterations} --z 1 {name}"
