"""Counting and choosing, without ranks: what a counter is worth, and what NCCL says of itself."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from meshcost.errors import ExecutionError
from meshcost.execute import counters
from meshcost.execute.counters import Bytes, choose_counter, tcp_counter
from meshcost.execute.gpus import choose_device, count_gpus
from meshcost.execute.nccl import (
    Choice,
    debug_log,
    infiniband_counter,
    last_choice,
    nccl_traffic,
    own_choice,
    visible_gpu,
)
from meshcost.execute.plan import Case
from meshcost.execute.verify import Settings, rows_of
from meshcost.measurement import Measurement, allowed_bytes


def exchange(number):
    """Send bytes over loopback; both ends stay open until the context ends."""
    stack = contextlib.ExitStack()
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    sender = stack.enter_context(socket.create_connection(server.getsockname()))
    receiver = stack.enter_context(server.accept()[0])
    sender.sendall(bytes(number))
    receiver.recv(number, socket.MSG_WAITALL)
    return stack, server.getsockname()[1]


def test_a_counter_that_counts_wrong_is_not_believed(monkeypatch):
    real = counters.interface_counter
    monkeypatch.setattr(counters, "tcp_counter", lambda **options: lambda: Bytes(0, 0))
    kind, _ = choose_counter("lo")
    assert kind in ("interface", "none")
    monkeypatch.setattr(counters, "interface_counter", lambda name: lambda: Bytes(7, 7))
    kind, count = choose_counter("lo")
    assert kind == "none"
    assert count() == Bytes(0, 0)
    assert callable(real)


def test_the_store_is_left_out():
    if choose_counter("lo")[0] != "tcp_info":
        pytest.skip("this kernel does not count bytes per socket")
    stack, port = exchange(5000)
    with stack:
        assert tcp_counter()().sent - tcp_counter(skip_ports=(port,))().sent == 5000


def test_an_interface_is_counted_once_for_all_ranks():
    case = Case("all_reduce", (0, 1), 2**20)
    answer = {"correct": True, "seconds": 0.1, "sent": 2_101_000.0, "received": 2_100_000.0}
    rows = rows_of(case, {0: answer, 1: answer}, Settings(), Case.predict, "interface")
    assert len(rows) == 1
    assert rows[0].rank is None
    assert rows[0].predicted_sent_bytes == 2 * 1_049_152
    assert rows[0].passed


def test_without_a_counter_only_results_are_judged():
    case = Case("all_reduce", (0, 1), 2**20)
    answer = {"correct": True, "seconds": 0.1, "sent": 0.0, "received": 0.0}
    rows = rows_of(case, {0: answer, 1: answer}, Settings(), Case.predict, "none")
    assert [row.measured_sent_bytes for row in rows] == [None, None]
    assert all(row.passed for row in rows)
    wrong = rows_of(case, {0: answer, 1: {**answer, "correct": False}}, Settings(), Case.predict, "none")
    assert [row.passed for row in wrong] == [True, False]


@pytest.mark.parametrize(("size", "share"), [(8 * 2**20, 0.001), (2**20, 0.01)])
def test_what_is_allowed_is_what_is_promised(size, share):
    assert allowed_bytes(size, size) == int(size * share)
    for off, passes in ((int(size * share), True), (int(size * share) + 1, False)):
        row = Measurement("broadcast", 2, size, 0, size, size + off, 48, 48, True, 1.0, 0.0, 0.0)
        assert row.passed is passes


def test_nccl_rows_are_held_to_the_algorithm_that_it_chose():
    case = Case("all_reduce", (0, 1, 2, 3), 4 * 2**20)
    assert nccl_traffic(case, 0, "ring/simple").sent_bytes == 6 * 2**20
    assert nccl_traffic(case, 0, "ring/ll").sent_bytes == 12 * 2**20
    assert nccl_traffic(case, 1, "nvls/simple").sent_bytes == 5 * 2**20  # S to the switch, S / n out of it
    answer = {
        "correct": True,
        "seconds": 0.1,
        "sent": 6.0 * 2**20,
        "received": 6.0 * 2**20,
        "chosen": "ring/simple",
    }
    rows = rows_of(case, dict.fromkeys(range(4), answer), Settings(backend="nccl"), Case.predict, "nvlink")
    assert all(row.passed and row.note == "ring/simple" for row in rows)


LOG = """\
host:1:9 [0] NCCL INFO NCCL version 2.29.7+cuda13.0
host:1:9 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..3}
host:1:9 [0] NCCL INFO ReduceScatter: 64 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
host:1:9 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}
host:1:9 [0] NCCL INFO AllGather: 8388608 Bytes -> Algo 1 proto 2 time 61.5
"""


@pytest.mark.parametrize(
    ("op", "choice"),
    [
        ("all_reduce", Choice("ring", "simple")),
        ("reduce_scatter", Choice("nvls", "simple")),
        ("all_gather", Choice("ring", "simple")),
        ("reduce", None),
        ("all_to_all", None),
    ],
)
def test_the_newest_choice_for_an_operation_counts_and_messages_have_none(op, choice):
    assert last_choice(LOG, op) == choice


def test_a_rank_reads_what_nccl_wrote_for_its_own_process_and_nothing_is_left(monkeypatch):
    line = "host:1:9 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo {} proto LL channel{{Lo..Hi}}={{0..1}}\n"
    with debug_log() as variables:
        pattern = Path(variables["NCCL_DEBUG_FILE"])
        monkeypatch.setenv("NCCL_DEBUG_FILE", str(pattern))
        for process, algorithm, seen in ((os.getpid() + 1, "RING", ""), (os.getpid(), "TREE", "tree/ll")):
            name = pattern.name.replace("%h", "host").replace("%p", str(process))
            (pattern.parent / name).write_text(line.format(algorithm))
            assert own_choice("all_reduce") == seen
        assert own_choice("broadcast") == ""
    assert not pattern.parent.exists()
    assert own_choice("all_reduce") == ""


def test_what_the_first_rank_says_of_nccls_choice_holds_for_all():
    case = Case("all_reduce", (0, 1, 2, 3), 4 * 2**20)
    answer = {"correct": True, "seconds": 0.1, "sent": 0.0, "received": 0.0, "chosen": ""}
    answers = {0: {**answer, "chosen": "ring/ll"}} | dict.fromkeys((1, 2, 3), answer)
    rows = rows_of(case, answers, Settings(backend="nccl"), Case.predict, "nvlink")
    assert {(row.note, row.predicted_sent_bytes) for row in rows} == {("ring/ll", 12 * 2**20)}


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_nccls_tree_is_a_chain_where_all_ranks_share_a_node(ranks):
    case = Case("all_reduce", tuple(range(ranks)), 4096)
    moved = [nccl_traffic(case, at, "tree/simple") for at in range(ranks)]
    assert [x.sent_bytes for x in moved] == [4096, *[8192] * (ranks - 2), 4096]
    assert sum(x.sent_bytes for x in moved) == sum(x.received_bytes for x in moved) == 2 * (ranks - 1) * 4096


def test_between_nodes_nccls_tree_is_a_double_tree(monkeypatch):
    for name, text in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    case = Case("all_reduce", (0, 1, 2, 3), 4096)
    most = max(nccl_traffic(case, at, "tree/simple").sent_bytes for at in range(4))
    assert most == 2 * 4096  # S * min(4, n) / 2


def test_a_gpu_is_known_by_the_number_of_its_driver(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpu(1) == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-8a56")
    assert [visible_gpu(0), visible_gpu(1)] == ["5", "GPU-8a56"]


@pytest.fixture
def three_gpus(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\nfor i in 0 1 2; do echo "GPU $i: NVIDIA H100 (UUID: GPU-$i)"; done\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


@pytest.mark.parametrize(("visible", "number"), [(None, 3), ("", 0), ("2", 1), ("0,1", 2), ("0,1,2,3", 3)])
def test_gpus_that_may_be_used_are_counted(visible, number, three_gpus):
    if visible is not None:
        three_gpus.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus() == number


def test_each_rank_of_nccl_needs_a_gpu(three_gpus, run):
    assert choose_device("nccl")[:2] == ("nccl", "cuda")
    done = run("verify", "--backend", "nccl", "--ranks", "2,4", "--size", "1MiB")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "4 ranks, and 3 GPUs here. Choose 3 ranks or fewer" in done.err
    launcher = {
        "RANK": "0",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }
    for name, text in launcher.items():
        three_gpus.setenv(name, text)
    with pytest.raises(ExecutionError, match=r"4 ranks on this host, which has 3. Use --nproc-per-node 3"):
        choose_device("nccl")


def test_infiniband_ports_count_words_of_four_bytes(tmp_path):
    for device in ("mlx5_0", "mlx5_1"):
        folder = tmp_path / device / "ports" / "1" / "counters"
        folder.mkdir(parents=True)
        (folder / "port_xmit_data").write_text("250\n")
        (folder / "port_rcv_data").write_text("1000\n")
    assert infiniband_counter(tmp_path)() == Bytes(2000, 8000)


def test_one_gpu_is_shared_over_gloo_and_the_report_says_what_that_shows():
    backend, device, said = choose_device("nccl", gpus=1)
    assert (backend, device) == ("gloo", "cuda:0")
    assert "says nothing about NCCL" in said


@pytest.mark.parametrize(
    ("hard", "said"), [(200, "(100, 200)"), (80, "so many ranks take 100 open files, and 80 are allowed")]
)
def test_ranks_may_open_as_many_files_as_they_need(hard, said):
    script = (
        "import resource\n"
        "from meshcost.errors import ExecutionError\n"
        "from meshcost.execute.open_files import allow_open_files\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))\n"
        "try:\n    allow_open_files(100)\nexcept ExecutionError as error:\n    print(error)\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert said in done.stdout
