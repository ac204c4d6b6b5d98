"""Every table of a bill adds up: each column of whole numbers to what stands in the last row, seconds too."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest

import meshcost as mc
from meshcost.cli.options import By
from meshcost.clusters import read_cluster
from meshcost.event import CLUSTER
from meshcost.report.bill import Bill
from meshcost.report.data import as_csv, as_dict, as_markdown
from meshcost.report.terminal import Shown

EXAMPLES = {path.stem: path for path in sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))}
CLUSTERED = read_cluster("h100-dgx")
#: The first stage has the head's twin and no experts, and sends most; the second takes turns at other links.
LOPSIDED = {
    "model": {
        "model_type": "deepseek_v3", "hidden_size": 256, "intermediate_size": 4096, "moe_intermediate_size": 16,
        "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 65536, "n_routed_experts": 8,
        "num_experts_per_tok": 1, "n_shared_experts": 1, "first_k_dense_replace": 4, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    },
    "parallel": {
        "data": {"strategy": "ddp", "size": 16},
        "pipeline": {"size": 2, "layers_per_stage": [4, 2]},
        "expert": 8,
    },
    "batch": {"sequence": 512, "global_batch": 16},
}  # fmt: skip


@pytest.fixture(scope="module", params=[*EXAMPLES, "lopsided"])
def bill(request: pytest.FixtureRequest) -> Bill:
    name = request.param
    job = mc.read_job(LOPSIDED) if name == "lopsided" else mc.load(EXAMPLES[name])
    return Bill(mc.analyze(job), cluster=CLUSTERED)


def rows(bill: Bill, by: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_csv(bill, by))))


@pytest.mark.parametrize("by", [by.value for by in By if by not in ("event", "stage")])
def test_every_column_adds_up(bill: Bill, by: str):
    table, totals = rows(bill, by), as_dict(bill, by)["totals"]
    columns = [name for name in table[0] if name not in (by, "seconds")]
    assert {name: sum(int(row[name]) for row in table) for name in columns} == {
        name: totals[name] for name in columns
    }
    if by != "link":
        assert sum(float(row["seconds"]) for row in table) == pytest.approx(bill.total_seconds)


def test_the_events_of_each_stage_add_up_to_it(bill: Bill):
    for stage, sums in enumerate(bill.ledger.by_stage):
        table = rows(Bill(bill.ledger, stage=stage, cluster=bill.cluster), "event")
        assert all(str(stage) in row["stages"].split() for row in table)
        for name in ("sent_bytes", "received_bytes", "intra_node_bytes", "inter_node_bytes"):
            assert sum(int(row[name]) for row in table) == getattr(sums, name)
        assert sum(int(row["count"]) for row in table) == sums.calls
        assert sum(float(row["seconds"]) for row in table) == pytest.approx(bill.stage_seconds[stage])


def test_the_events_of_the_whole_bill_add_up_to_its_totals_and_to_all_ranks(bill: Bill):
    table = rows(bill, "event")
    own = [row for row in table if str(bill.payer_stage) in row["stages"].split()]
    for name in ("sent_bytes", "received_bytes", "intra_node_bytes", "inter_node_bytes"):
        assert sum(int(row[name]) for row in own) == getattr(bill.totals, name)
    for name in CLUSTER:
        assert sum(int(row[name]) for row in table) == bill.all_together[name]


def test_the_whole_bill_is_that_of_one_rank(bill: Bill):
    """The one that it names: its totals and each of its rows are what ``--rank`` shows of that rank."""
    alone = Bill(bill.ledger, rank=bill.payer_rank)
    assert bill.payer == f"{alone.payer}, the busiest"
    assert bill.totals == alone.totals == bill.ledger.totals
    assert as_dict(bill)["totals"]["busiest_rank"] == bill.payer_rank
    mine = {line.number: line.totals for line in alone.lines}
    assert mine == {line.number: line.totals for line in bill.lines if line.number in mine}
    for by in (by.value for by in By if by not in ("event", "stage")):
        assert {name: sums for name, sums in bill.groups(by).items() if sums.sent_bytes} == {
            name: sums for name, sums in alone.groups(by).items() if sums.sent_bytes
        }


def test_each_row_by_stage_is_what_that_stage_alone_shows(bill: Bill):
    for row in rows(bill, "stage"):
        alone = Bill(bill.ledger, stage=int(row["stage"]), cluster=bill.cluster)
        own = alone.totals.as_dict()
        assert {name: int(row[name]) for name in own} == own
        assert float(row["seconds"]) == pytest.approx(alone.total_seconds)


def test_the_slowest_rank_is_named_where_another_sends_most():
    lopsided = Bill(mc.analyze(mc.read_job(LOPSIDED)), cluster=CLUSTERED)
    assert (lopsided.payer_stage, lopsided.slowest_stage) == (0, 1)
    slow = max(lopsided.stage_seconds)
    for by in (None, "op"):
        seconds = as_dict(lopsided, by)["seconds"]
        assert (seconds["slowest_stage"], seconds["slowest_total"]) == (1, slow)
        assert seconds["total"] == lopsided.total_seconds < slow
        last = as_markdown(lopsided, by).splitlines()[-1]
        assert "slowest" in last
        assert f"| {slow} |" in last


def test_a_part_by_stage_names_whose_it_is(bill: Bill, shown: Callable[..., str]):
    """Its last row does, as by anything else; whole, each row is a stage's and there is no sum of them."""
    for part in (Bill(bill.ledger, rank=bill.payer_rank), Bill(bill.ledger, stage=bill.payer_stage)):
        for page in (shown(Shown(part, "stage"), 160), as_markdown(part, "stage")):
            assert part.payer in page
            assert "shares are of the busiest" not in page
    assert "shares are of the busiest" in shown(Shown(bill, "stage"), 160)
