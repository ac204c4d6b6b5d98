"""`meshcost compare`: what one bill has beyond another, and that no byte of either is lost."""

import csv
import io
import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from meshcost import Job, Ledger, analyze, load
from meshcost.report.comparison import compared

Run = Callable[..., object]
Jobs = dict[str, Path]
EXAMPLES = Path(__file__).parents[2] / "examples"


def trained(strategy: str, **more: object) -> Ledger:
    parallel = {"data": {"strategy": strategy, "size": 4}, "tensor": {"size": 2}, "pad_vocabulary": 128}
    return analyze(Job(model="gpt2", parallel=parallel, batch={"sequence": 64, "global_batch": 4}, **more))


def written(run: Run, *arguments: object) -> dict:
    done = run("compare", *arguments, "--format", "json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


@pytest.fixture
def pair(jobs: Jobs, tmp_path: Path) -> tuple[Path, Path]:
    """One job with sharded weights and one with whole ones, alike in all else."""
    other = tmp_path / "whole.yaml"
    other.write_text(jobs["dense"].read_text().replace("strategy: fsdp", "strategy: ddp"))
    return jobs["dense"], other


def test_only_what_differs_is_told_apart_whoever_calls_it():
    """ZeRO-1 splits the all-reduce of DDP in two; what tensor parallelism and the loss call is the same."""
    one, other = trained("zero1"), trained("ddp")
    found = {(x.op, x.axes, x.phase): (x.calls, x.other_calls) for x in one.compare(other)}
    assert found == {
        ("all_reduce", ("data",), "backward"): (1, 2),
        ("reduce_scatter", ("data",), "backward"): (1, 0),
        ("all_gather", ("data",), "optimizer"): (1, 0),
        ("all_reduce", ("tensor", "data"), "optimizer"): (1, 0),
        ("all_reduce", ("tensor",), "optimizer"): (0, 1),
    }
    assert one.compare(trained("zero1")) == ()
    sent = sum(x.sent_bytes - x.other_sent_bytes for x in one.compare(other))
    assert sent == one.totals.sent_bytes - other.totals.sent_bytes


def test_equal_counts_of_other_buffers_differ():
    wide = trained("ddp", precision={"weights": "bf16", "reduce": "fp32"})
    assert [x.reasons for x in trained("ddp").compare(wide)]


def test_the_rows_of_every_table_add_up_to_its_last():
    """Rows that differ are shown; what is summed up as alike has no difference."""
    bills = [(path.stem, analyze(load(path))) for path in sorted(EXAMPLES.glob("*.yaml"))]
    assert len(bills) > 10
    for pair in combinations(bills, 2):
        shown = compared(pair)
        rows = [line.beyond[0] for line in shown.lines if not line.alike]
        first, other = (totals.sent_bytes for totals in shown.totals)
        assert sum(rows) == other - first, [name for name, _ in pair]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parallel": {"data": 8}}, "same calls and buffers, groups of 4 and 8"),
        ({"algorithms": {"all_reduce": "tree"}}, "same calls and buffers, sent another way"),
    ],
    ids=["groups", "algorithm"],
)
def test_equal_calls_in_other_groups_or_sent_another_way_are_not_alike(change: dict, said: str):
    plain = {"model": "gpt2", "parallel": {"data": 4}, "batch": {"sequence": 64, "global_batch": 8}}
    one, other = analyze(Job(**plain)), analyze(Job(**plain | change))
    assert one.totals.sent_bytes != other.totals.sent_bytes
    (line,) = [line for line in compared([("one", one), ("other", other)]).lines if not line.alike]
    assert line.note == said
    (found,) = one.compare(other)
    assert (found.calls, found.sent_bytes) == (found.other_calls, one.totals.sent_bytes)


def test_the_lines_of_each_bill_add_up_to_it(run: Run, pair: tuple[Path, Path]):
    data = written(run, *pair)
    assert [bill["name"] for bill in data["bills"]] == ["dense", "whole"]
    for i, bill in enumerate(data["bills"]):
        for key in ("calls", "payload_bytes", "sent_bytes"):
            assert sum(line[key][i] for line in data["lines"]) == bill["totals"][key]
    for line in data["lines"]:
        assert line["difference_bytes"] == [line["sent_bytes"][1] - line["sent_bytes"][0]]
    assert {line["axes"][0] for line in data["lines"] if not line["alike"]} <= {"data", "tensor"}
    assert [line["op"] for line in data["lines"] if line["axes"] == ["pipeline"] and not line["alike"]] == []


def test_three_bills_and_every_format(run: Run, pair: tuple[Path, Path], jobs: Jobs):
    files = (*pair, jobs["alone"])
    assert run("compare", *files).code == 0
    done = run("compare", *files, "--format", "csv")
    *lines, last = csv.DictReader(io.StringIO(done.out))
    data = written(run, *files)
    assert len(lines) == len(data["lines"])
    for i, bill in enumerate(data["bills"]):
        assert int(last[f"sent_bytes {bill['name']}"]) == data["bills"][i]["busiest_rank"]["sent_bytes"]
    markdown = run("compare", *files, "--format", "markdown").out.splitlines()
    assert len(markdown) == len(lines) + 3


def test_one_job_under_two_frameworks(run: Run, jobs: Jobs):
    data = written(run, jobs["dense"], "--frameworks", "textbook,torch")
    named = [(x["name"], x["about"]["framework"]) for x in data["bills"]]
    assert named == [("textbook", "textbook"), ("torch", "torch")]
    assert not all(line["alike"] for line in data["lines"])
    assert "difference" in run("compare", jobs["dense"], "--frameworks", "textbook,torch").out


def test_a_row_says_how_many_reasons_it_stands_for(run: Run, jobs: Jobs, tmp_path: Path):
    """Here every reason is shared: both jobs call the same on buffers of other sizes."""
    longer = tmp_path / "longer.yaml"
    longer.write_text(jobs["dense"].read_text().replace("sequence: 32", "sequence: 64"))
    lines = written(run, jobs["dense"], longer)["lines"]
    page = " ".join(run("compare", jobs["dense"], longer, columns=400).out.split())
    merged = [line["why"] for line in lines if not line["alike"] and len(line["why"]) > 1]
    assert merged
    for first, *others in merged:
        assert f"{first} (and {len(others)} more reason{'s' if len(others) > 1 else ''})" in page
    rows = csv.DictReader(io.StringIO(run("compare", jobs["dense"], longer, "--format", "csv").out))
    assert [row["why"].split(" / ") for row in rows][:-1] == [line["why"] for line in lines]


def test_bills_that_are_alike_say_so(run: Run, pair: tuple[Path, Path], tmp_path: Path):
    same = tmp_path / "same.yaml"
    same.write_text(pair[0].read_text())
    assert "They are alike" in run("compare", pair[0], same).out


def test_the_stage_that_is_looked_at(run: Run, pair: tuple[Path, Path]):
    assert {bill["stage"] for bill in written(run, *pair, "--stage", 1)["bills"]} == {1}
    done = run("compare", *pair, "--stage", 2)
    assert (done.code, done.err) == (2, "meshcost: dense: stage 2 does not exist: choose 0 to 1.\n")


def test_what_cannot_be_compared(run: Run, jobs: Jobs):
    done = run("compare", jobs["dense"])
    assert (done.code, done.out) == (2, "")
    assert "--frameworks textbook,torch" in done.err
    assert (
        "Choose textbook or torch." in run("compare", jobs["dense"], "--frameworks", "torch,tensorflow").err
    )
    done = run("compare", jobs["dense"], "--frameworks", "torch, torch")
    assert (done.code, done.out) == (2, "")
    assert "torch is named twice" in done.err


def test_the_seconds_of_each_bill_are_those_of_analyze(run: Run, jobs: Jobs, tmp_path: Path):
    on = ("--cluster", "h100-dgx")
    saved = tmp_path / "saved.json"
    saved.write_text(run("analyze", str(jobs["dense"]), *on, "--format", "json").out)
    files = [str(jobs["dense"]), str(jobs["uneven"]), str(saved)]
    found = json.loads(run("compare", *files, *on, "--format", "json").out)["bills"]
    for file, bill in zip(files, found, strict=True):
        analyzed = json.loads(run("analyze", file, *on, "--by", "stage", "--format", "json").out)
        slowest = {name: analyzed["seconds"][name] for name in ("slowest_stage", "slowest_total")}
        (own,) = (row["seconds"] for row in analyzed["rows"] if row["stage"] == str(bill["stage"]))
        assert bill["seconds"].items() >= {**slowest, "total": own}.items()
    page = run("compare", *files, *on).out
    assert page.count("of communication") == 3
    assert "nothing is hidden behind computation" in page
    assert "of communication" not in run("compare", *files[:2]).out
