"""Saved bills, and jobs from standard input: what commands read besides a job file."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., object]
Jobs = dict[str, Path]
COMMANDS = [("analyze",), ("analyze", "--by", "op"), ("analyze", "--rank", 1), ("analyze", "--format", "csv"),
            ("analyze", "--format", "json"), ("explain",), ("calls", "--rank", 1)]  # fmt: skip


@pytest.fixture
def bill(run: Run, jobs: Jobs, tmp_path: Path) -> Path:
    path = tmp_path / "bill.json"
    path.write_text(run("analyze", jobs["experts"], "--format", "json").out)
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_saved_bill_reads_like_its_job(run: Run, jobs: Jobs, bill: Path, command: tuple[object, ...]):
    name, *options = command
    saved, fresh = run(name, bill, *options), run(name, jobs["experts"], *options)
    assert (saved.code, saved.err) == (0, "")
    assert saved.out == fresh.out


def test_every_event_of_a_saved_bill_is_explained(run: Run, jobs: Jobs, bill: Path):
    """As in its job, but for how it grows, which needs the job: that is said, and nothing else is left out."""
    for number in range(1, len(json.loads(bill.read_text())["events"]) + 1):
        saved, fresh = (run("explain", path, number) for path in (bill, jobs["experts"]))
        assert (saved.code, saved.err) == (0, "")
        before, _, after = fresh.out.partition("\nHow what is ")
        assert saved.out.startswith(before.partition("\nSymbols\n")[0])
        assert after.partition("\nWho says so\n")[2] in saved.out
        assert saved.out.count("grows") == 1
        assert "a saved bill does not hold the job" in saved.out.splitlines()[-1]
        assert json.loads(run("explain", bill, number, "--format", "json").out)["growth"] is None


def test_a_saved_bill_is_compared_with_jobs(run: Run, jobs: Jobs, bill: Path):
    assert "They are alike" in run("compare", bill, jobs["experts"]).out
    assert "They are alike" not in run("compare", jobs["dense"], bill).out


def test_a_saved_bill_gets_its_seconds_from_a_cluster_of_such_nodes(
    run: Run, jobs: Jobs, bill: Path, tmp_path: Path
):
    options = ("--cluster", "h100-dgx", "--format", "json")
    saved, fresh = (json.loads(run("analyze", path, *options).out) for path in (bill, jobs["experts"]))
    assert saved["seconds"] == fresh["seconds"]
    timed = tmp_path / "timed.json"
    timed.write_text(json.dumps(fresh))
    assert json.loads(run("analyze", timed, "--format", "json").out) == fresh
    little = tmp_path / "dense.json"
    little.write_text(run("analyze", jobs["dense"], "--format", "json").out)
    assert (
        "nodes of 8 GPUs, and the saved bill is of nodes of 4"
        in run("analyze", little, "--cluster", "h100-dgx").err
    )


@pytest.mark.parametrize(
    "part", [(), ("--by", "op"), ("--by", "stage"), ("--stage", 0), ("--rank", 1)], ids=str
)
@pytest.mark.parametrize("form", ["table", "csv", "markdown", "json"])
def test_the_seconds_that_a_saved_bill_states_are_shown(
    run: Run, jobs: Jobs, tmp_path: Path, form: str, part: tuple[object, ...]
):
    """As for its job; a cluster that is named instead counts for itself."""
    job = tmp_path / "timed.yaml"
    job.write_text(jobs["experts"].read_text() + "cluster: h100-dgx\n")
    saved = tmp_path / "timed.json"
    saved.write_text(run("analyze", job, "--format", "json").out)
    shown, fresh = (run("analyze", path, *part, "--format", form).out for path in (saved, job))
    assert shown == fresh
    if form == "table":
        assert "Time: on h100-dgx" in shown
        assert "Time: on a100-dgx" in run("analyze", saved, *part, "--cluster", "a100-dgx").out
    else:
        assert "seconds" in shown


def test_where_a_saved_bill_does_not_help_one_sentence_says_so(run: Run, bill: Path, tmp_path: Path):
    other = tmp_path / "bill.yaml"
    other.write_text(bill.read_text())
    spoilt = tmp_path / "spoilt.json"
    spoilt.write_text(bill.read_text().replace('"world_size": 4', '"world_size": 5'))
    for arguments, said in (
        (("analyze", other), f"{other}: a saved bill, not a job: analyze"),
        (("analyze", bill, "--framework", "torch"), "--framework: "),
        (("compare", bill, "--frameworks", "textbook,torch"), f"--frameworks: {bill} is a saved bill"),
        (("analyze", spoilt), f"{spoilt}: mesh: its axes do not make up the stated world."),
    ):
        done = run(*arguments)
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
        assert said in done.err


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_job_is_read_from_standard_input(
    run: Run, jobs: Jobs, command: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
):
    name, *options = command
    fresh = run(name, jobs["dense"], *options).out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(jobs["dense"].read_bytes())))
    assert run(name, "-", *options).out == fresh != ""


@pytest.mark.parametrize(
    ("given", "said"), [(b"", "empty"), (b"\xff", "not text in UTF-8"), (b"model: [\n", "not YAML")]
)
def test_what_is_wrong_on_standard_input_is_said_of_it(
    run: Run, given: bytes, said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    done = run("analyze", "-")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("standard input: ")
    assert said in done.err


def test_a_model_on_standard_input_is_looked_for_in_the_working_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config = {"model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "vocab_size": 16}  # fmt: skip
    (tmp_path / "tiny.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    job = b"model: tiny.json\nparallel: {data: 2}\nbatch: {sequence: 8, global_batch: 2}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(job)))
    done = run("analyze", "-")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("tiny")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--rank", "0"), "it holds the part of one rank."),
        (("--stage", "0"), "it holds the part of one stage."),
        (("--by", "op"), "it holds sums, not the bill."),
    ],
)
def test_a_part_of_a_bill_is_called_that(
    run: Run, jobs: Jobs, tmp_path: Path, option: tuple[str, str], said: str
):
    saved = tmp_path / "part.json"
    saved.write_text(run("analyze", str(jobs["dense"]), *option, "--format", "json").out)
    for command in (("analyze",), ("calls", "--rank", "0"), ("explain",), ("compare", str(saved))):
        done = run(*command, str(saved))
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert done.err.startswith(f"meshcost: {saved}: {said} Save the")


def test_a_bill_that_is_cut_off_is_no_yaml(run: Run, jobs: Jobs, tmp_path: Path):
    saved = tmp_path / "cut.json"
    whole = run("analyze", str(jobs["dense"]), "--format", "json").out
    saved.write_text(whole[: len(whole) // 2])
    done = run("analyze", str(saved))
    assert done.code == 2
    assert "not JSON" in done.err
    assert "YAML" not in done.err


def test_an_event_of_a_saved_bill_has_every_symbol_that_its_job_has(run: Run, jobs: Jobs, tmp_path: Path):
    saved = tmp_path / "bill.json"
    saved.write_text(run("analyze", str(jobs["dense"]), "--format", "json").out)
    fresh, again = (
        {
            row["event"]: json.loads(run("explain", path, row["event"], "--format", "json").out)["symbols"]
            for row in json.loads(run("explain", path, "--format", "json").out)
        }
        for path in (str(jobs["dense"]), str(saved))
    )
    assert fresh == again
