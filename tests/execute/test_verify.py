"""Real ranks, real bytes: what Gloo sends is what the forms say, and a wrong form is found out."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

pytest.importorskip("torch")

from meshcost.collectives import ALGORITHMS
from meshcost.errors import ExecutionError
from meshcost.execute import crew, plan
from meshcost.execute.crew import Fault
from meshcost.execute.plan import OPERATIONS, Case, cases, schedules
from meshcost.execute.verify import Settings, verify
from meshcost.measurement import from_dict
from meshcost.report.verify import Verdict, as_dict, watch

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


#: What is measured once, with one start of ranks: each part is a law of its own.
PARTS = {
    "operations": cases(ranks=(2, 3, 5, 8), sizes=(1200, 2**20)),
    "large": cases(["all_reduce", "reduce", "all_to_all"], [3], [8 * 2**20]),
    "tiny": cases(["all_reduce", "broadcast", "reduce", "send_recv"], [3], [4])
    + schedules(["all_reduce", "broadcast"], [3], [4]),
    "schedules": schedules(ranks=(3, 4), sizes=(4800,)),
    "groups": [Case("all_reduce", members, 6000) for members in ((0, 2), (1, 3), (1, 2, 3))],
    "roots": [
        Case(op, (0, 1, 2), 3 * 4096, root=root)
        for op in ("broadcast", "reduce", "gather", "scatter", "send_recv")
        for root in (1, 2)
    ],
}


@pytest.fixture(scope="module")
def measured():
    """The rows of each part."""
    rows, by_case = [], {}

    def finished(case):
        by_case[case] = list(rows)
        rows.clear()

    for row in verify([case for part in PARTS.values() for case in part], FAST, progress=finished):
        rows.append(row)  # noqa: PERF402 - it is emptied after each call
    return {part: [row for case in PARTS[part] for row in by_case[case]] for part in PARTS}


def test_every_operation_sends_what_is_predicted(measured):
    rows = measured["operations"]
    assert {row.op for row in rows} == set(OPERATIONS)
    assert [row for row in rows if not row.correct] == []
    assert [row for row in rows if not row.agrees] == []
    if rows[0].counter == "tcp_info":
        off = [row for row in rows if row.off_bytes]
        assert len(off) <= len(rows) // 50, "more than an odd late answer"


def test_large_payloads_are_within_a_thousandth(measured):
    assert all(row.passed for row in measured["large"])
    assert all(abs(row.off_share or 0) <= 0.001 for row in measured["large"])


def test_every_schedule_of_the_shelf_is_the_native_collective(measured):
    alone = {
        (op, name) for name, x in ALGORITHMS.items() if not x.switch for op in x.forms if op in OPERATIONS
    }
    assert {(row.op, row.algorithm) for row in measured["schedules"]} == alone
    assert [(row.op, row.algorithm, row.rank) for row in measured["schedules"] if not row.passed] == []


@pytest.mark.parametrize("part", ["tiny", "groups", "roots"])
def test_any_rank_may_be_the_root_a_group_may_be_any_ranks_and_one_element_be_all(part, measured):
    assert [(row.op, row.algorithm, row.rank) for row in measured[part] if not row.passed] == []
    assert len({row.rank for row in measured[part]}) == 1 + max(row.rank or 0 for row in measured[part])


def test_a_wrong_prediction_is_found_and_said(monkeypatch, run):
    real = plan.traffic
    monkeypatch.setattr(
        plan, "traffic", lambda *call, **size: replace(real(*call, **size), sent_payload=2**19)
    )
    done = run("verify", "--op", "reduce_scatter", "--ranks", "2", "--size", "1MiB", "--format", "json")
    rows = [from_dict(row) for row in json.loads(done.out)["rows"]]
    if rows[0].counter != "tcp_info":
        pytest.skip("this kernel does not count bytes per socket")
    assert done.code == 1
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
        (["--op", "Broadcst"], "Did you mean broadcast?"),
        (["--size", "4"], "--size 4: scatter needs 4 B for each of 4 ranks. Choose 16 or more."),
        (
            ["--size", "0", "--op", "all_reduce"],
            "--size 0: all_reduce needs an element of 4 B. Choose 4 or more.",
        ),
        (["--resume"], "name it with --results"),
        (["--save", "speeds.txt"], "ends in .yaml"),
        (["--save", "no-such-folder/speeds.yaml"], "there is no folder no-such-folder"),
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


USUAL = "-d float -n 20 -c 1"
CHOICES = ("ring", "tree", "direct", "rabenseifner", "chain")


@pytest.mark.parametrize(
    ("tool", "options", "lines"),
    [
        (
            "nccl-tests",
            ["--op", "All-to-all", "--ranks", "8", "--size", "1MiB"],
            ["./build/alltoall_perf -b 1048576 -e 1048576 -g 8 -d float -n 20 -c 1"],
        ),
        (
            "nccl-tests",
            ["--op", "reduce,send_recv,barrier", "--ranks", "16", "--size", "1MiB"],
            [
                "mpirun -np 16 -N 8 ./build/reduce_perf -b 1048576 -e 1048576 -g 1 -d float -n 20 -c 1",
                "# send_recv: sendrecv_perf sends from every rank at once, here one rank sends to one other",
                "# barrier: nccl-tests has no program for it",
            ],
        ),
        (
            "nccl-tests",
            ["--op", "all_gather", "--ranks", "3", "--size", "500"],
            [f"./build/all_gather_perf -b 492 -e 492 -g 3 {USUAL}  # cuts chunks to whole 16 B, so it takes 480 B"],
        ),
        (
            "param",
            ["--op", "reduce_scatter,send_recv", "--ranks", "2", "--size", "4KiB"],
            [
                "mpirun -np 2 ./comms.py --master-ip 127.0.0.1 --b 4096 --e 4096 --f 2 --n 20 --z 1 " + name
                for name in ("--collective reduce_scatter_base", "--pt2pt one2one --src-ranks 0 --dst-ranks 1")
            ],
        ),
        (
            "param",
            ["--op", "reduce", "--ranks", "2", "--size", "4KiB", "--schedules"],
            [f"# reduce as {name}: param runs what its library chooses" for name in CHOICES],
        ),
    ],
)  # fmt: skip
def test_other_programs_measure_the_same_calls(tool, options, lines, run):
    assert run("verify", "--export", tool, *options).out.splitlines() == lines


def test_what_was_measured_before_an_error_is_shown():
    row = from_dict({**dict.fromkeys(KEYS, 0), "op": "reduce", "ranks": 2, "rank": 0, "correct": True})

    def stops(progress):
        yield row
        raise ExecutionError("rank 1 failed.")

    rows, trouble = watch(stops, [], total=2)
    assert (rows, str(trouble)) == ([row], "rank 1 failed.")
    document = as_dict(rows, [], trouble)
    assert (document["passed"], document["errors"], len(document["rows"])) == (False, ["rank 1 failed."], 1)
    page = StringIO()
    Console(file=page, width=160).print(Verdict(rows, finished=False))
    assert "1 call before it stopped right" in page.getvalue()


def test_ranks_that_are_not_forked_are_watched_too(monkeypatch):
    """As on macOS, where each of them is a program of its own."""
    starts = "import sys; from meshcost.execute.nursery import main; main([int(x) for x in sys.argv[1:]], forks=False)"
    monkeypatch.setattr(crew, "NURSERY", ("-c", starts))
    with pytest.raises(ExecutionError, match="rank 1 was ended by SIGKILL in barrier over 2 ranks"):
        list(
            verify(
                [Case("reduce", (0, 1), 4), Case("barrier", (0, 1), 0)],
                replace(FAST, fault=Fault(1, "SIGKILL", "barrier")),
            )
        )


def test_more_ranks_than_memory_holds_are_refused_before_they_start():
    from meshcost.execute.plan import bound

    with pytest.raises(ExecutionError, match=r"Choose --ranks 5\."):
        bound(cases(["all_reduce"], [64], [2**20]), world=64, free=10**9)
