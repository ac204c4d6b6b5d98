"""Real ranks, real bytes: what Gloo sends is what the forms say, and a wrong form is found out."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from meshcost.errors import ExecutionError
from meshcost.execute.plan import OPERATIONS, Case, cases, schedules
from meshcost.execute.verify import Settings, verify
from meshcost.measurement import from_dict

pytestmark = [pytest.mark.gloo, pytest.mark.xdist_group("gloo")]
FAST = Settings(timeout=40, iterations=1)
KEYS = {
    "op", "ranks", "payload_bytes", "rank", "predicted_sent_bytes", "measured_sent_bytes", "predicted_received_bytes",
    "measured_received_bytes", "correct", "seconds", "algbw", "busbw",
}  # fmt: skip


def meshcost(**more):
    command = [sys.executable, "-m", "meshcost", "verify"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=100, env=environment | more
    )


def test_every_operation_sends_what_is_predicted():
    rows = list(verify(cases(ranks=(2, 3, 5, 8), sizes=(1200, 2**20)), FAST))
    assert {row.op for row in rows} == set(OPERATIONS)
    assert [row for row in rows if not row.correct] == []
    assert [row for row in rows if not row.agrees] == []
    if rows[0].counter == "tcp_info":
        off = [row for row in rows if row.off_bytes]
        assert len(off) <= len(rows) // 50, "more than an odd late answer"


def test_large_payloads_are_within_a_thousandth():
    rows = list(verify(cases(["all_reduce", "reduce", "all_to_all"], [3], [8 * 2**20]), FAST))
    assert all(row.passed for row in rows)
    assert all(abs(row.off_share or 0) <= 0.001 for row in rows)


def test_every_schedule_of_the_shelf_is_the_native_collective():
    planned = schedules(ranks=(3, 4), sizes=(4800,))
    rows = list(verify(planned, FAST))
    assert len({case.algorithm for case in planned}) > 8
    assert [(row.op, row.algorithm, row.rank) for row in rows if not row.passed] == []


def test_any_rank_may_be_the_root_and_a_group_may_be_any_ranks():
    planned = [Case("all_reduce", members, 6000) for members in ((0, 2), (1, 3), (1, 2, 3))]
    planned += [
        Case(op, (0, 1, 2), 3 * 4096, root=root)
        for op in ("broadcast", "reduce", "gather", "scatter", "send_recv")
        for root in (1, 2)
    ]
    assert all(row.passed for row in verify(planned, FAST))


def test_a_wrong_prediction_is_found_and_said():
    from io import StringIO

    from rich.console import Console

    from meshcost.report.verify import Verdict

    def textbook(case, position):
        return replace(case.predict(position), sent_payload=case.payload_bytes // 2)

    rows = list(verify(cases(["reduce_scatter"], [2], [2**20]), FAST, predict=textbook))
    if rows[0].counter != "tcp_info":
        pytest.skip("this kernel does not count bytes per socket")
    assert not any(row.passed for row in rows)
    page = StringIO()
    Console(file=page, width=160, force_terminal=True, color_system="standard").print(Verdict(rows))
    assert "WRONG BYTES" in page.getvalue()
    assert "WRONG: 1 of 1 call" in page.getvalue()
    assert "\x1b[1;31m" in page.getvalue()


def test_the_command_line_gives_rows_and_goes_on_where_it_was(tmp_path, run):
    path, saved = tmp_path / "rows.jsonl", tmp_path / "measured.yaml"
    options = [
        "verify",
        "--op",
        "all_reduce,broadcast",
        "--ranks",
        "2",
        "--size",
        "64KiB,256KiB",
        "--format",
        "json",
    ]
    done = run(*options, "--results", path, "--save", saved)
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["passed"]
    assert all(set(row) >= KEYS for row in document["rows"])
    assert len(document["rows"]) == len(path.read_text().splitlines()) == 8
    kept = path.read_text().splitlines(keepends=True)
    path.write_text("".join(kept[:5]) + kept[5][:40])
    again = run(*options, "--results", path, "--resume", "--cluster", saved)
    assert again.code == 0, again.err
    rows = [from_dict(row) for row in json.loads(again.out)["rows"]]
    assert [row.key for row in rows] == [from_dict(json.loads(line)).key for line in kept]
    assert all(row.predicted_seconds for row in rows)
    refused = run(*options, "--results", path)
    assert refused.code == 2
    assert "--resume" in refused.err


def test_without_torch_there_is_one_sentence(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'torch' else found(name, *rest)\n"
    )
    done = meshcost(PYTHONPATH=f"{tmp_path}{os.pathsep}{os.pathsep.join(path for path in sys.path if path)}")
    assert done.returncode == 2
    assert "pip install 'meshcost[torch]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--op", "all_reduc"], "--op all_reduc: not an operation"),
        (["--ranks", "1"], "--ranks 1: choose 2 to"),
        (["--ranks", "two"], "--ranks two: not numbers"),
        (["--size", "8 MeB"], "--size 8 MeB: not a size"),
        (["--size", "4"], "less than one element for each rank"),
        (["--backend", "mpi"], "choose gloo or nccl"),
        (["--export", "osu"], "choose nccl-tests or param"),
        (["--ranks", "1000", "--size", "1GiB"], "of memory, and only"),
        (["--cluster", "h101-dgx", "--size", "64KiB"], "Did you mean h100-dgx?"),
    ],
)
def test_a_mistake_is_one_sentence(options, said, run):
    done = run("verify", *options)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_other_programs_measure_the_same_calls(run):
    done = run("verify", "--export", "nccl-tests", "--op", "all_to_all", "--ranks", "8", "--size", "1MiB")
    assert done.out == "./build/alltoall_perf -b 1048576 -e 1048576 -g 8 -d float -n 20 -c 1\n"


def test_more_ranks_than_memory_holds_are_refused_before_they_start():
    from meshcost.execute.plan import bound

    with pytest.raises(ExecutionError, match=r"Choose --ranks 5\."):
        bound(cases(["all_reduce"], [64], [2**20]), world=64, free=10**9)
