"""Real ranks, real bytes: what Gloo sends is what the forms say, and a wrong form is found out."""

import importlib.util
import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

pytest.importorskip("torch")

import torch

from meshcost.clusters import read_cluster
from meshcost.collectives import ALGORITHMS
from meshcost.errors import ExecutionError
from meshcost.execute import crew
from meshcost.execute.command import Request, read_bytes
from meshcost.execute.crew import Fault
from meshcost.execute.exercises import factor_of, fill, holds
from meshcost.execute.plan import MOST_RANKS, OPERATIONS, Case, cases, schedules
from meshcost.execute.results import Results
from meshcost.execute.verify import Settings, verify
from meshcost.measurement import from_dict
from meshcost.report.verify import Verdict, as_dict, watch

pytestmark = [pytest.mark.gloo, pytest.mark.xdist_group("gloo")]
FAST = Settings(timeout=40, iterations=1)
KEYS = {
    "op", "ranks", "payload_bytes", "rank", "predicted_sent_bytes", "measured_sent_bytes", "predicted_received_bytes",
    "measured_received_bytes", "correct", "seconds", "algbw", "busbw",
}  # fmt: skip


#: What is measured once, with one start of ranks: each part is a law of its own.
PARTS = {
    "operations": cases(ranks=(2, 3, 8), sizes=(1200, 2**20)),
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
    "mispredicted": cases(["reduce_scatter"], [2], [4096]),
}


def predict(case, position):
    """What is right, but for one part."""
    right = case.predict(position)
    return replace(right, sent_payload=5000) if case in PARTS["mispredicted"] else right


# For the session: tests of other modules may come in between.
@pytest.fixture(scope="session")
def measured():
    """The rows of each part."""
    rows, by_case = [], {}

    def finished(case):
        by_case[case] = list(rows)
        rows.clear()

    planned = [case for part in PARTS.values() for case in part]
    for row in verify(planned, FAST, predict=predict, progress=finished):
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


def test_the_figures_of_a_row_belong_together(measured):
    """Those of its call, which is as slow as its slowest rank."""
    calls = {}
    for row in measured["operations"] + measured["groups"]:
        calls.setdefault(row.key, []).append(row)
    for key, rows in calls.items():
        assert [row.rank for row in rows] == list(key.group)
        assert {row.seconds for row in rows} == {max(row.rank_seconds for row in rows)}
        assert all(row.algbw == row.payload_bytes / row.seconds for row in rows)
    assert any(row.rank_seconds < row.seconds for rows in calls.values() for row in rows)


@pytest.mark.parametrize("ranks", [3, MOST_RANKS])
def test_the_sum_of_what_ranks_contribute_is_exact_in_any_order(ranks):
    """In fp32, however many ranks there may be; else a right sum would be called wrong."""
    parts = torch.empty(ranks, 1500)
    for position, part in enumerate(parts):
        fill(part, 7, factor_of(position))
    whole = sum(factor_of(position) for position in range(ranks))
    for order in (parts, parts.flip(0), parts[torch.randperm(ranks)]):
        added = torch.zeros(1500)
        for part in order:
            added += part
        assert holds(added, 7, whole)
        added[1400] += 1
        assert not holds(added, 7, whole)


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


def test_a_wrong_prediction_is_found_and_said(measured, tmp_path, run):
    """The command finds the rows in a file, where such a run has left them."""
    rows = measured["mispredicted"]
    if rows[0].counter != "tcp_info":
        pytest.skip("this kernel does not count bytes per socket")
    assert not any(row.passed for row in rows)
    Results(tmp_path / "rows.jsonl").append(rows)
    asked = ["--op", "reduce_scatter", "--ranks", "2", "--size", "4KiB", "--iterations", "1"]
    done = run("verify", *asked, "--results", tmp_path / "rows.jsonl", "--resume", columns=160)
    assert done.code == 1
    assert "WRONG BYTES" in done.out
    assert "WRONG: 1 of 1 call" in done.out
    page = StringIO()
    Console(file=page, width=160, force_terminal=True, color_system="standard").print(Verdict(rows))
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
    left = [from_dict(json.loads(line)) for line in path.read_text().splitlines()]
    assert sorted((row.key.op, row.payload_bytes, row.rank) for row in left) == sorted(
        (row.key.op, row.payload_bytes, row.rank) for row in rows
    )  # the half of a call that was cut off is gone
    refused = run(*options, "--results", path)
    assert refused.code == 2
    assert "--resume" in refused.err


def test_without_torch_there_is_one_sentence(monkeypatch, run):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else found(name, *rest)
    )
    done = run("verify")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "pip install 'meshcost[torch]'" in done.err


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
        (["--op", ""], "--op : not an operation. Choose send_recv, "),
        (["--size", ""], "--size : not a size"),
        (["--ranks", ""], "--ranks : not numbers"),
        (["--export", ""], "choose nccl-tests or param"),
        (["--cap", "4MiB"], "--cap is the largest payload of a job: name one"),
        (["--resume"], "name it with --results"),
        (["--save", "speeds.txt"], "ends in .yaml"),
        (["--save", "no-such-folder/speeds.yaml"], "there is no folder no-such-folder"),
        (["--backend", "mpi"], "choose gloo or nccl"),
        (["--export", "osu"], "choose nccl-tests or param"),
        (["--ranks", "1000", "--size", "1GiB"], "of memory, and only"),
        (["--cluster", "h101-dgx", "--size", "64KiB"], "Did you mean h100-dgx?"),
        (["--timeout", "inf"], "--timeout inf: choose seconds, 86400 (a day) at most"),
        (["--timeout", "1e9"], "--timeout 1e+09: choose seconds"),
        (["--size", "1EiB"], "--size 1EiB: too large. The largest is 1 PiB."),
        (["--size", "9" * 400], "too large. The largest is 1 PiB."),
        (["--results", "no-such-folder/rows"], "no-such-folder/rows: cannot be written: No such file"),
        (["--results", "."], ".: cannot be written: Is a directory"),
        (
            ["--save", "a.yaml", "--ranks", "2", "--size", "1MiB"],
            "--save: a fit needs two sizes with the same number of ranks",
        ),
        (["--save", "a.yaml", "--op", "barrier"], "--save: a fit needs two sizes"),
        (["--save", "a.yaml", "--schedules", "--op", "reduce"], "--save: a fit needs two sizes"),
    ],
)
def test_a_mistake_is_one_sentence(options, said, run, tmp_path, monkeypatch):
    """At once: neither a rank nor a word of what they take comes before it, and no file."""
    monkeypatch.chdir(tmp_path)
    done = run("verify", *options)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert " are free." not in done.err
    assert list(tmp_path.iterdir()) == []


def test_no_size_is_rounded_before_its_time():
    assert read_bytes("--size", "2.01GB") == 2_010_000_000
    assert read_bytes("--size", "1PiB") == 2**50


#: A row as it is kept, of no bytes.
ROW = {**dict.fromkeys(sorted(KEYS), 0), "op": "barrier", "ranks": 2, "correct": True, "group": [0, 1]}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"garbage", "."),
        (b"\xff\xfe\x00", "."),
        (b"[" * 100_000, "."),
        (b"7", "."),
        (b"{}", ": op: missing. Write it."),
        (ROW | {"ranks": "x"}, ": ranks: 'x' is not legal: it has to be a whole number."),
        (ROW | {"seconds": float("nan")}, ": seconds: nan is not legal: it has to be a finite number."),
        (ROW | {"seconds": -1}, ": seconds: -1 is not legal"),
        (ROW | {"correct": 1}, ": correct: 1 is not legal"),
        (ROW | {"group": [0, "a"]}, ": group.1: 'a' is not legal"),
        (ROW | {"rank": 2}, "."),
        (ROW | {"iterations": 0}, ": iterations: 0 is not legal"),
    ],
)
def test_a_line_that_is_no_row_is_refused_with_its_number(line, said, tmp_path, run):
    path = tmp_path / "rows.jsonl"
    written = line if isinstance(line, bytes) else json.dumps(line).encode()
    path.write_bytes(json.dumps(ROW).encode() + b"\n" + written + b"\n")
    done = run("verify", "--op", "barrier", "--ranks", "2", "--results", path, "--resume")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"meshcost: {path}: line 2 is not a row of meshcost verify{said}")
    assert done.err.count("\n") == 1


def test_a_file_that_no_rows_fill_is_not_read(tmp_path, run):
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        file.truncate(2**28 + 1)
    done = run("verify", "--op", "barrier", "--ranks", "2", "--results", path, "--resume")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"meshcost: {path}: larger than 268,435,456 bytes, which no such file needs.\n"


def test_rows_of_other_iterations_are_not_shown_as_those_asked_for(tmp_path, run):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(ROW | {"rank": rank, "iterations": 3}) + "\n" for rank in (0, 1)))
    asked = ["verify", "--op", "barrier", "--ranks", "2", "--results", path, "--resume"]
    assert run(*asked).code == 0
    done = run(*asked, "--iterations", "5")
    assert (done.code, done.out) == (2, "")
    assert (
        "2 of the rows that --resume would show are means of 3 calls, and --iterations asks for 5."
        in done.err
    )
    assert " are free." not in done.err


def test_a_last_line_that_was_cut_off_is_made_anew(tmp_path):
    """Also where only its end is missing: the next row would follow on the same line."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW))
    assert len(list(Results(path).read())) == 1
    Results(path).keep(list(Results(path).read()))
    Results(path).append([from_dict(ROW)])
    assert len(list(Results(path).read())) == 2


def test_a_cluster_without_seconds_between_nodes_is_said(tmp_path):
    path = tmp_path / "mine.yaml"
    known = read_cluster("h100-dgx").model_dump(mode="json", exclude_none=True)
    links = {"intra_node": known["links"]["intra_node"]}
    path.write_text(json.dumps({"gpus_per_node": 2, "links": links}))
    asked = Request(op="reduce", ranks="2,3,4", size="64KiB", cluster=str(path))
    assert asked.notes[-1] == (
        f"--cluster {path}: it has no links.inter_node, and nodes of 2 GPUs, so calls of 3, 4 ranks have no predicted time."
    )
    assert not any("predicted time" in note for note in replace(asked, ranks="2").notes)


USUAL = "-d float -n 3 -c 1"
CUT = "# --size: 500 B becomes 492 B: whole elements of 4 B, in equal chunks where an operation needs them."
CHOICES = ("ring", "tree", "direct", "rabenseifner", "chain")


@pytest.mark.parametrize(
    ("tool", "options", "lines"),
    [
        (
            "nccl-tests",
            ["--op", "All-to-all", "--ranks", "8", "--size", "1MiB"],
            [f"./build/alltoall_perf -b 1048576 -e 1048576 -g 8 {USUAL}"],
        ),
        (
            "nccl-tests",
            ["--op", "reduce,send_recv,barrier", "--ranks", "16", "--size", "1MiB"],
            [
                f"mpirun -np 16 -N 8 ./build/reduce_perf -b 1048576 -e 1048576 -g 1 {USUAL} -a 3",
                "# send_recv: sendrecv_perf sends from every rank at once, here one rank sends to one other",
                "# barrier: nccl-tests has no program for it",
            ],
        ),
        (
            "nccl-tests",
            ["--op", "all_gather", "--ranks", "3", "--size", "500"],
            [CUT, f"./build/all_gather_perf -b 492 -e 492 -g 3 {USUAL}  # cuts chunks to whole 16 B, so it takes 480 B"],
        ),
        (
            "param",
            ["--op", "reduce_scatter,send_recv", "--ranks", "2", "--size", "4KiB", "--iterations", "20"],
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


def test_the_calls_of_a_job_are_measured_as_they_are_executed(tmp_path, run):
    """Scaled down, which is said; and as they are where no payload is above the cap."""
    job = tmp_path / "job.yaml"
    job.write_text(
        "model: gpt2\nparallel: {tensor: {size: 2, vocabulary_parallel: false}}\nbatch: {sequence: 64, global_batch: 1}\n"
    )
    scaled, *lines = run("verify", job, "--export", "nccl-tests", "--cap", "16KiB").out.splitlines()
    assert scaled.startswith("# Payloads above 16KiB are scaled down to it (--cap)")
    assert f"./build/all_reduce_perf -b 16384 -e 16384 -g 2 {USUAL}" in lines
    for cap in ([], ["--cap", "none"]):
        real = run("verify", job, "--export", "nccl-tests", *cap).out.splitlines()
        assert f"./build/all_reduce_perf -b 98304 -e 98304 -g 2 {USUAL}" in real
        assert not any(line.startswith("# Payloads") for line in real)


def test_a_size_that_is_cut_is_said(run):
    options = ["--op", "all_gather,all_reduce", "--ranks", "3", "--export", "nccl-tests"]
    assert (
        "# --size: 502 B becomes 492 B, 502 B becomes 500 B: whole"
        in run("verify", *options, "--size", "502").out
    )
    assert "becomes" not in run("verify", *options, "--size", "1200").out


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
