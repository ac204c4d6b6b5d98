"""`meshcost analyze`: the data it writes, and that the tables are the same bill."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from meshcost.cli.options import By
from meshcost.event import CLUSTER
from meshcost.formula import bind, parse
from meshcost.ledger import Ledger
from meshcost.report.bill import Bill
from meshcost.report.data import EVENT_COLUMNS, markdown_text
from meshcost.symbols import ALPHABET

Run = Callable[..., object]
Jobs = dict[str, Path]
every_job = pytest.mark.parametrize("name", ["dense", "experts", "uneven", "alone"])
NUMBERS = ("count", "payload_bytes", "sent_bytes", "received_bytes", "intra_node_bytes", "inter_node_bytes")


def written(run: Run, *arguments: object) -> dict:
    done = run("analyze", *arguments, "--format", "json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


@every_job
def test_json_is_the_ledger(run: Run, jobs: Jobs, ledgers: dict[str, Ledger], name: str):
    data = written(run, jobs[name])
    assert data == json.loads(json.dumps(ledgers[name].to_dict()))
    assert Ledger.from_dict(data) == ledgers[name]


def test_json_has_what_was_promised(run: Run, jobs: Jobs):
    data = written(run, jobs["dense"])
    assert data["world_size"] == 8
    for event in data["events"]:
        texts = {"strategy", "op", "phase", "why", "dtype", "algorithm"}
        assert all(isinstance(event[key], str) for key in texts)
        assert all(type(event[key]) is int for key in (*NUMBERS, "group_size"))
        assert all(isinstance(event[key], list) for key in ("axes", "stages"))
        assert {"payload", "count", "sent"} <= set(event["formula"])
        assert event["intra_node_bytes"] + event["inter_node_bytes"] == event["sent_bytes"]
    totals = data["totals"]
    assert all(type(totals[key]) is int for key in ("calls", "payload_bytes", "sent_bytes"))
    for key in ("by_strategy", "by_op", "by_phase"):
        assert sum(part["sent_bytes"] for part in totals[key].values()) == totals["sent_bytes"]
    assert max(part["sent_bytes"] for part in totals["by_stage"].values()) == totals["sent_bytes"]


def test_the_formulas_in_the_json_give_its_numbers(run: Run, jobs: Jobs):
    for event in written(run, jobs["experts"])["events"]:
        values = {ALPHABET[name]: number for name, number in event["values"].items()}
        formula = {key: bind(parse(text), values) for key, text in event["formula"].items()}
        assert formula["count"] == event["count"]
        assert formula["payload"] == event["payload_bytes"]
        assert formula["sent"] == event["sent_bytes"]


@pytest.mark.parametrize("stage", [0, 1])
def test_json_of_one_stage(run: Run, jobs: Jobs, ledgers: dict[str, Ledger], stage: int):
    data = written(run, jobs["dense"], "--stage", stage)
    whole = ledgers["dense"]
    assert len(data["events"]) == len(whole.at_stage(stage)) < len(whole)
    assert all(stage in event["stages"] for event in data["events"])
    totals = whole.by_stage[stage].as_dict()
    assert {key: data["totals"][key] for key in totals} == totals
    assert sum(event["sent_bytes"] for event in data["events"]) == totals["sent_bytes"]
    assert data["stage"] == stage
    assert list(data["totals"]["by_stage"]) == [str(stage)]


@pytest.mark.parametrize("rank", range(5))
def test_json_of_one_rank(run: Run, jobs: Jobs, ledgers: dict[str, Ledger], rank: int):
    data = written(run, jobs["uneven"], "--rank", rank)
    mine = ledgers["uneven"].rank_totals(rank).as_dict()
    assert {key: data["totals"][key] for key in mine} == mine
    assert (data["stage"], data["rank"]) == (0, rank)
    assert sum(part["sent_bytes"] for part in data["totals"]["by_op"].values()) == mine["sent_bytes"]


@every_job
def test_every_figure_of_one_rank_is_its_own(run: Run, jobs: Jobs, ledgers: dict[str, Ledger], name: str):
    """Ranks of one ring differ in what leaves their node: only those at its edge send between nodes."""
    ledger, fields = ledgers[name], ("sent_bytes", "received_bytes", "intra_node_bytes", "inter_node_bytes")
    for rank in range(ledger.mesh.world_size):
        data = written(run, jobs[name], "--rank", rank)
        mine = ledger.rank_totals(rank)
        for key in fields:
            assert sum(event[key] for event in data["events"]) == getattr(mine, key)
            assert all(event[key] == event["count"] * event["one_call"][key] for event in data["events"])
        for rows in (
            [data["totals"]],
            data["events"],
            *(data["totals"][f"by_{x}"].values() for x in ("op", "stage")),
        ):
            assert all(x["intra_node_bytes"] + x["inter_node_bytes"] == x["sent_bytes"] for x in rows)


@every_job
def test_what_all_ranks_send_together(run: Run, jobs: Jobs, ledgers: dict[str, Ledger], name: str):
    ledger, data = ledgers[name], written(run, jobs[name])
    ranks = [ledger.rank_totals(rank) for rank in range(ledger.mesh.world_size)]
    assert data["totals"]["cluster_sent_bytes"] == sum(x.sent_bytes for x in ranks)
    assert data["totals"]["cluster_inter_node_bytes"] == sum(x.inter_node_bytes for x in ranks)
    for key in CLUSTER:
        assert sum(event[key] for event in data["events"]) == data["totals"][key]
    by_op = written(run, jobs[name], "--by", "op")["rows"]
    for row in by_op:
        assert row["cluster_sent_bytes"] == ledger.filter(op=row["op"]).cluster_sent_bytes


@every_job
@pytest.mark.parametrize("by", [by.value for by in By])
def test_every_sum_in_every_format(run: Run, jobs: Jobs, ledgers: dict[str, Ledger], name: str, by: str):
    data = written(run, jobs[name], "--by", by)
    bill = Bill(ledgers[name])
    if by == "event":
        assert data == written(run, jobs[name])
        return
    assert data["by"] == by
    assert data["totals"] == bill.totals.as_dict() | bill.all_together
    rows = data["rows"]
    assert {row[by]: row["sent_bytes"] for row in rows} == {
        key: sums.sent_bytes for key, sums in bill.groups(by).items()
    }
    done = run("analyze", jobs[name], "--by", by, "--format", "csv")
    table = list(csv.DictReader(io.StringIO(done.out)))
    assert table == [{key: str(value) for key, value in row.items()} for row in rows]
    done = run("analyze", jobs[name], "--by", by, "--format", "markdown")
    for row in rows:
        assert "| " + " | ".join(map(str, row.values())) + " |" in done.out.splitlines()
    assert run("analyze", jobs[name], "--by", by).code == 0


@every_job
def test_csv_has_exact_events(run: Run, jobs: Jobs, ledgers: dict[str, Ledger], name: str):
    done = run("analyze", jobs[name], "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert done.out.splitlines()[0] == ",".join(EVENT_COLUMNS)
    lines = Bill(ledgers[name]).lines
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        event, sums = line.event, line.totals
        exact = (event.calls, event.payload_bytes, sums.sent_bytes, sums.received_bytes)
        assert tuple(int(row[key]) for key in NUMBERS[:4]) == exact
        assert (row["event"], row["why"], row["stages"].split()) == (
            line.name,
            event.why,
            [*map(str, event.stages)],
        )
        assert bind(parse(row["formula_sent"]), event.values) == event.totals.sent_bytes


def test_csv_of_one_rank_has_what_that_rank_sends(run: Run, jobs: Jobs, ledgers: dict[str, Ledger]):
    for rank in range(5):
        done = run("analyze", jobs["uneven"], "--rank", rank, "--format", "csv")
        sent = sum(int(row["sent_bytes"]) for row in csv.DictReader(io.StringIO(done.out)))
        assert sent == ledgers["uneven"].rank_totals(rank).sent_bytes


def test_seconds_are_in_every_format(run: Run, jobs: Jobs):
    timed = ("analyze", jobs["dense"], "--cluster", "h100-dgx")
    data = json.loads(run(*timed, "--format", "json").out)
    stage, total = str(data["totals"]["busiest_stage"]), data["seconds"]["total"]
    for by in ((), ("--by", "op")):
        rows = csv.DictReader(io.StringIO(run(*timed, *by, "--format", "csv").out))
        own = [float(row["seconds"]) for row in rows if stage in row.get("stages", stage).split()]
        assert sum(own) == pytest.approx(total)
        assert f"| {total} |" in run(*timed, *by, "--format", "markdown").out.splitlines()[-1]
        assert "nothing is hidden" in run(*timed, *by).out


@pytest.mark.parametrize("part", [(), ("--stage", 1), ("--rank", 0)])
def test_json_has_the_number_and_name_that_explain_takes(run: Run, jobs: Jobs, part: tuple[object, ...]):
    for event in written(run, jobs["dense"], *part)["events"]:
        for asked in (event["number"], event["event"]):
            found = json.loads(run("explain", jobs["dense"], asked, "--format", "json").out)
            assert (found["number"], found["why"]) == (event["number"], event["why"])


def test_markdown_is_one_table(run: Run, jobs: Jobs, ledgers: dict[str, Ledger]):
    done = run("analyze", jobs["dense"], "--format", "markdown")
    rows = done.out.splitlines()
    assert len({row.count("|") for row in rows}) == 1
    assert len(rows) == 2 + len(ledgers["dense"]) + 1
    assert f"| {ledgers['dense'].totals.sent_bytes} |" in rows[-1]


def test_a_bar_in_a_cell_does_not_end_it():
    assert markdown_text(("a",), [{"a": "x|y"}]).splitlines()[-1] == "| x\\|y |"


def test_a_pipe_gets_a_wide_page_with_every_column_and_no_colour(run: Run, jobs: Jobs):
    done = run("analyze", jobs["dense"])
    assert "\x1b" not in done.out
    assert "payload" in done.out
    assert "between" in done.out
    assert 120 < max(map(len, done.out.splitlines())) <= 160


@pytest.mark.parametrize("by", [(), ("--by", "op")])
def test_colours_are_those_of_the_page_and_of_no_name_in_a_file(
    run: Run, jobs: Jobs, by: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    """Wherever there are colours, also in a pipe that asks for them."""
    job = jobs["dense"]
    job.write_text(job.read_text().replace("model_type: llama", r'name: "a\e[8mb\e[2Jc", model_type: llama'))
    plain = run("analyze", job, *by).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run("analyze", job, *by).out
    assert coloured.startswith("\x1b[1ma\\x1b[8mb\\x1b[2Jc\x1b[0m")
    assert set(re.findall("\x1b[^m]*.", coloured)) >= {"\x1b[0m", "\x1b[1m", "\x1b[2m"}
    without = re.sub("\x1b\\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in without.splitlines()] == plain.splitlines()


def test_exact_bytes_in_a_table(run: Run, jobs: Jobs, ledgers: dict[str, Ledger]):
    number = f"{ledgers['dense'].totals.sent_bytes:,}"
    assert number in run("analyze", jobs["dense"], "--exact").out
    assert number in run("analyze", jobs["dense"], "--exact", "--by", "strategy").out
    assert number not in run("analyze", jobs["dense"]).out


def test_what_is_assumed_is_said(run: Run, jobs: Jobs):
    assert "assumed" in run("analyze", jobs["experts"]).out
    assert "assumed" not in run("analyze", jobs["dense"]).out


def test_a_framework_can_be_asked_for(run: Run, jobs: Jobs):
    assert run("analyze", jobs["dense"], "--framework", "textbook").out == run("analyze", jobs["dense"]).out
    done = run("analyze", jobs["dense"], "--framework", "textbok")
    assert done.code == 2
    assert "textbook" in done.err
