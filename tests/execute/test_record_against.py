"""`meshcost record --against JOB`: the calls of a script of one's own, held against the bill of a job."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshcost.execute.recording import Recording
from meshcost.execute.recording_truth import read_truth

FILE = json.loads((Path(__file__).parents[1] / "published" / "torch_recordings.json").read_text())
NAME = "fsdp2_default_w8"
Run = Callable[..., Any]


@pytest.fixture
def recorded() -> dict[int, Recording]:
    """What torch called, as it was recorded elsewhere."""
    entry = FILE["recordings"][NAME]
    ranks = {rank: [FILE["calls"][number] for number in numbers] for rank, numbers in entry["ranks"].items()}
    return read_truth({"name": NAME, "config": {"world": entry["world"]}, "ranks": ranks})


@pytest.fixture
def files(tmp_path: Path, recorded: dict[int, Recording]) -> tuple[Path, Path]:
    """A job file and the file of one rank."""
    job, file = tmp_path / "job.yaml", tmp_path / "rank-0.json"
    job.write_text(yaml.safe_dump(FILE["recordings"][NAME]["job"]))
    recorded[0].save(file)
    return job, file


def changed(job: Path, **fields: Any) -> Path:
    other = job.with_name("other.yaml")
    other.write_text(yaml.safe_dump({**yaml.safe_load(job.read_text()), **fields}))
    return other


def test_what_was_recorded_is_what_the_job_predicts(run: Run, files: tuple[Path, Path], recorded: dict):
    job, file = files
    done = run("record", "--show", file, "--against", job)
    assert (done.code, done.err) == (0, "")
    assert f"equal: {len(recorded[0])} calls of 1 rank, each as predicted and in order." in done.out
    assert "fsdp on data 8" in done.out
    found = json.loads(run("record", "--show", file, "--against", job, "--format", "json").out)
    assert found["equal"]
    assert found["ranks"][0]["calls"] == len(recorded[0])


def test_a_call_too_many_is_named_and_the_exit_code_says_so(
    run: Run, files: tuple[Path, Path], recorded: dict[int, Recording]
):
    job, file = files
    first = recorded[0]
    Recording(0, first.world_size, (*first.calls, first.calls[-1])).save(file)
    done = run("record", "--show", file, "--against", job)
    assert done.code == 1
    assert "DIFFERENT" in done.out
    assert "mismatch: fsdp on data 8, rank 0" in done.out
    found = json.loads(run("record", "--show", file, "--against", job, "--format", "json").out)
    assert not found["equal"]
    (extra,) = found["ranks"][0]["observed"]
    assert (extra["op"], extra["times"]) == (first.calls[-1].op, 1)


def test_calls_in_another_order_are_told_from_other_calls(
    run: Run, files: tuple[Path, Path], recorded: dict[int, Recording]
):
    job, file = files
    calls = recorded[0].calls
    Recording(0, recorded[0].world_size, (*calls[:-2], calls[-1], calls[-2])).save(file)
    done = run("record", "--show", file, "--against", job)
    assert done.code == 1
    assert "OTHER ORDER" in done.out


def test_another_layout_differs_and_the_book_is_said_to_be_one(run: Run, files: tuple[Path, Path]):
    job, file = files
    whole = changed(job, parallel={"data": {"strategy": "ddp", "size": 8}})
    assert run("record", "--show", file, "--against", whole).code == 1
    done = run("record", "--show", file, "--against", changed(job, framework="textbook", torch={}))
    assert done.code == 1
    assert "framework: torch predicts what PyTorch calls" in done.out


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"parallel": {"data": {"strategy": "fsdp", "size": 4}}},
            "a job of 4 ranks, and the recording is of a world of 8.",
        ),
        ({"model": "nobody"}, "nobody"),
    ],
)
def test_what_cannot_be_held_against_each_other_is_refused(
    run: Run, files: tuple[Path, Path], fields: dict[str, Any], said: str
):
    job, file = files
    done = run("record", "--show", file, "--against", changed(job, **fields))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
