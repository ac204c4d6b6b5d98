"""`meshcost calls`: exactly the calls of the ledger, in every format."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from meshcost.ledger import Ledger
from meshcost.report.calls import COLUMNS, FIRST, number_of_calls

Run = Callable[..., object]
Jobs = dict[str, Path]
every_job = pytest.mark.parametrize("name", ["dense", "experts", "uneven"])


@every_job
def test_calls_are_those_of_the_ledger(run: Run, jobs: Jobs, ledgers: dict[str, Ledger], name: str):
    ledger = ledgers[name]
    for rank in range(ledger.mesh.world_size):
        rows = json.loads(run("calls", jobs[name], "--rank", rank, "--format", "json").out)
        assert all(tuple(row) == COLUMNS for row in rows)
        assert all(rank in row["ranks"] for row in rows)
        found = Counter((row["op"], row["phase"], row["why"]) for row in rows)
        counted: Counter[tuple[str, str, str]] = Counter()
        for event in ledger.at_stage(ledger.mesh.stage(rank)):
            counted[event.op, event.phase, event.why] += event.calls
        assert found == counted
        assert number_of_calls(ledger, rank) == len(rows)


@every_job
def test_all_formats_say_the_same(run: Run, jobs: Jobs, name: str):
    rows = json.loads(run("calls", jobs[name], "--rank", 1, "--format", "json").out)
    lines = run("calls", jobs[name], "--rank", 1, "--format", "jsonl").out.splitlines()
    assert [json.loads(line) for line in lines] == rows
    table = list(csv.DictReader(io.StringIO(run("calls", jobs[name], "--rank", 1, "--format", "csv").out)))
    assert len(table) == len(rows)
    for flat, row in zip(table, rows, strict=True):
        assert flat["ranks"].split() == [str(rank) for rank in row["ranks"]]
        assert int(flat["in_bytes"]) == row["in_bytes"]
        assert flat["why"] == row["why"]


def test_nothing_is_an_empty_array(run: Run, jobs: Jobs):
    assert json.loads(run("calls", jobs["alone"], "--rank", 0, "--format", "json").out) == []
    assert "0 calls" in run("calls", jobs["alone"], "--rank", 0).out


@pytest.mark.parametrize(("limit", "shown"), [(3, 3), (0, None), (10**6, None)])
def test_a_limit_limits(run: Run, jobs: Jobs, limit: int, shown: int | None):
    every = json.loads(run("calls", jobs["dense"], "--rank", 0, "--format", "json").out)
    some = json.loads(run("calls", jobs["dense"], "--rank", 0, "--format", "json", "--limit", limit).out)
    assert some == every[:shown]


def test_a_table_says_how_many_more_there_are(run: Run, jobs: Jobs):
    every = len(json.loads(run("calls", jobs["dense"], "--rank", 0, "--format", "json").out))
    out = run("calls", jobs["dense"], "--rank", 0, "--limit", 10, columns=100).out
    assert f"{every} calls in one step" in out
    assert f"and {every - 10} more" in out
    assert "more" not in run("calls", jobs["dense"], "--rank", 0, "--limit", 0).out
    assert max(map(len, out.splitlines())) <= 100


def test_a_long_table_stops_by_itself(run: Run, tmp_path: Path):
    job = tmp_path / "long.yaml"
    job.write_text(
        "{model: gpt2, parallel: {data: {strategy: fsdp, size: 2}}, batch: {sequence: 8, global_batch: 64}}"
    )
    out = run("calls", job, "--rank", 0).out
    assert "more: --limit 0 shows all" in out
    rows = [line for line in out.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert len(rows) <= FIRST


def test_equal_calls_in_a_row_are_one_line(run: Run, tmp_path: Path):
    job = tmp_path / "ring.yaml"
    job.write_text("{model: gpt2, parallel: {context: 4}, batch: {sequence: 64, global_batch: 1}}")
    out = run("calls", job, "--rank", 0, "--limit", 0).out
    calls = json.loads(run("calls", job, "--rank", 0, "--format", "json").out)
    rows = [line for line in out.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert len(rows) <= len(calls)
    assert "0 -> 1" in out
