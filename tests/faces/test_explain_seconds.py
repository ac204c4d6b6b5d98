"""`meshcost explain --cluster`: what the seconds of a line are made of, and that they are those of its bill."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import meshcost as mc
from meshcost.clusters import Cluster, read_cluster
from meshcost.report.bill import Bill
from meshcost.report.explain import find
from meshcost.report.explain_page import Page

Run = Callable[..., object]
Jobs = dict[str, Path]

EXAMPLES = Path(__file__).parents[2] / "examples"
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
TIME = r"([\d.e+]+) (s|ms|us)\b"


def section(page: str) -> dict[str, list[str]]:
    """The lines under "How long", by what stands left of them."""
    lines = page.partition("How long on")[2].partition("\n\n")[0].splitlines()[1:]
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        head = re.match(r"  (bytes|rounds|one call|all calls) +", line)
        name = head[1] if head else name
        found.setdefault(name, []).append(line[head.end() :] if head else line)
    return found


def times(line: str) -> list[float]:
    return [float(number) * UNITS[unit] for number, unit in re.findall(TIME, line)]


def worked_out(lines: dict[str, list[str]]) -> float:
    """What somebody with the page and a pencil gets for one call."""
    moved = [
        int(size.replace(",", "")) * float(turns or 1) / (float(speed) * 1e9)
        for line in lines["bytes"]
        for size, turns, speed in re.findall(r"([\d,]+) B [a-z ]+(?:x ([\d.]+) )?/ ([\d.]+) GB/s", line)
    ]
    waits = [
        int(rounds.replace(",", "")) * float(latency) * UNITS[unit]
        for line in lines.get("rounds", [])
        for rounds, latency, unit in re.findall(rf"([\d,]+) [a-z ]+ x {TIME} =", line)
    ]
    assert moved
    return max(moved) + sum(waits)


def ours(adapters: int) -> Cluster:
    links = {
        name: {
            "latency": {"value": latency, "unit": "us", "direction": "one message", "source": "made up here"},
            "bandwidth": {
                "value": value, "unit": "GB/s", "direction": "per direction, per rank", "source": "made up here",
            },
        }
        for name, latency, value in (("intra_node", 2, 300), ("inter_node", 12.5, 25))
    }  # fmt: skip
    links["inter_node"]["adapters"] = adapters
    return read_cluster({"gpus_per_node": 8, "links": links})


@pytest.mark.parametrize(
    ("example", "adapters"),
    [("llama-3.1-405b", 8), ("deepseek-v3", 2), ("hsdp", 8), ("hsdp", 2), ("context-ring", 2)],
)
def test_the_seconds_of_a_line_can_be_worked_out_from_its_page(
    shown: Callable[..., str], example: str, adapters: int
):
    ledger, cluster = mc.analyze(mc.load(EXAMPLES / f"{example}.yaml")), ours(adapters)
    bill = Bill(ledger, cluster=cluster)
    for line in bill.lines:
        page = shown(Page(find(ledger, line.name, cluster=cluster)), 160, "ascii")
        lines, of_bill = section(page), bill.seconds(line.event)
        if line.event.op == "recv":
            assert of_bill == 0
            assert "timed where it is sent" in lines["one call"][0]
            continue
        one = worked_out(lines)
        assert times(lines["one call"][0])[-1] == pytest.approx(one, rel=5e-3)
        assert one * line.event.calls == pytest.approx(of_bill, rel=2e-3)
        assert times(lines["all calls"][0])[-1] == pytest.approx(of_bill, rel=5e-3)
        assert ("take turns" in page) == ("x 4 /" in page)


def test_a_small_all_reduce_says_that_it_goes_by_tree(run: Run):
    page = run("explain", str(EXAMPLES / "llama-3.1-405b.yaml"), "gradient norm", "--cluster", "h100-dgx").out
    assert "are those of a tree, which is faster than the ring" in page


def test_a_page_without_speeds_says_nothing_of_seconds(run: Run, jobs: Jobs):
    assert "How long" not in run("explain", str(jobs["dense"]), "1").out
    assert "seconds" not in json.loads(run("explain", str(jobs["dense"]), "1", "--format", "json").out)


def test_a_saved_bill_explains_the_seconds_that_it_states(run: Run, jobs: Jobs, tmp_path: Path):
    saved = tmp_path / "bill.json"
    saved.write_text(run("analyze", str(jobs["dense"]), "--cluster", "h100-dgx", "--format", "json").out)
    fresh = json.loads(
        run("explain", str(jobs["dense"]), "1", "--cluster", "h100-dgx", "--format", "json").out
    )["seconds"]
    stated = json.loads(run("explain", str(saved), "1", "--format", "json").out)["seconds"]
    assert stated == {name: fresh[name] for name in ("cluster", "caveat", "all_calls")}
    assert "as the saved bill states" in run("explain", str(saved), "1").out
    again = run("explain", str(saved), "1", "--cluster", "h100-dgx", "--format", "json").out
    assert json.loads(again)["seconds"] == fresh
