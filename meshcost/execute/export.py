"""Command lines of other programs that measure the same calls, to compare figures on the same machines."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from meshcost.errors import ExecutionError
from meshcost.execute.plan import Case

Tool = Literal["nccl-tests", "param"]

#: Program of nccl-tests for each operation; its sizes are ours (NVIDIA/nccl-tests, doc/PERFORMANCE.md).
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
        "send_recv": "sendrecv_perf",
    }
)
#: Name of PARAM for each operation (facebookresearch/param@39c20d4, train/comms/pt).
_PARAM: Mapping[str, str] = MappingProxyType(
    {
        "all_reduce": "all_reduce",
        "all_gather": "all_gather",
        "all_to_all": "all_to_all",
        "broadcast": "broadcast",
        "reduce": "reduce",
    }
)


def commands(planned: Iterable[Case], tool: str) -> list[str]:
    """Write one command line for each operation, number of ranks and size. Raises ExecutionError for another tool.

    >>> commands([Case("all_reduce", (0, 1), 1048576)], "nccl-tests")
    ['./build/all_reduce_perf -b 1048576 -e 1048576 -g 2 -d float -n 20 -c 1']
    """
    if tool not in ("nccl-tests", "param"):
        raise ExecutionError(f"--export {tool}: choose nccl-tests or param.")
    names = _NCCL_TESTS if tool == "nccl-tests" else _PARAM
    known = [case for case in planned if case.op in names and case.algorithm == "native"]
    lines: Sequence[str] = [
        _nccl_tests(names[case.op], case) if tool == "nccl-tests" else _param(names[case.op], case)
        for case in known
    ]
    return list(dict.fromkeys(lines))


def _nccl_tests(program: str, case: Case) -> str:
    size = case.payload_bytes
    return f"./build/{program} -b {size} -e {size} -g {case.ranks} -d float -n 20 -c 1"


def _param(name: str, case: Case) -> str:
    size = case.payload_bytes
    return (
        f"mpirun -np {case.ranks} ./comms.py --master-ip 127.0.0.1 --b {size} --e {size} --f 2 --n 20 --z 1 "
        f"--collective {name}"
    )
