"""Counting and choosing, without ranks: what a counter is worth, and what NCCL says of itself."""

import contextlib
import socket

import pytest

from meshcost.execute import counters
from meshcost.execute.counters import Bytes, choose_counter, tcp_counter
from meshcost.execute.gpus import choose_device
from meshcost.execute.nccl import Choice, infiniband_counter, last_choice, nccl_traffic
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


def test_the_newest_choice_in_a_log_counts():
    log = (
        "host:1:9 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..3}\n"
        "host:1:9 [0] NCCL INFO AllGather: 8388608 Bytes -> Algo 1 proto 2 time 61.5\n"
    )
    assert last_choice(log) == Choice("ring", "simple")
    assert last_choice("nothing of the kind") is None


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
