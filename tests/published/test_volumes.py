"""Bytes and calls that others have printed for named models: one row each, in volumes.json with its source and grade."""

import json
from pathlib import Path

import pytest

from meshcost.job import Job, analyze
from meshcost.ledger import Ledger

TRUTH = json.loads((Path(__file__).parent / "volumes.json").read_text())


def ledger_of(row: dict) -> Ledger:
    model = TRUTH["models"][row["model"]]
    ranks = row["parallel"].get("data", {}).get("size", 1)
    batch = {"sequence": row["sequence"], "micro_batch": 1, "global_batch": ranks * row["micro_batches"]}
    precision = row.get("precision", {"weights": "bf16"})
    ledger = analyze(Job(model=model, parallel=row["parallel"], batch=batch, precision=precision))
    return ledger.at_stage(row.get("stage", 0))


@pytest.mark.parametrize("row", TRUTH["rows"], ids=lambda row: row["name"])
def test_published_volume(row):
    wanted = row["select"]
    events = [e for e in ledger_of(row) if all(getattr(e, name) == value for name, value in wanted.items())]
    assert events
    found = {
        "calls": sum(event.calls for event in events),
        "payload": events[0].payload_bytes,
        "sum_payload": sum(event.calls * event.payload_bytes for event in events),
        "sum_sent": sum(event.totals.sent_bytes for event in events),
    }
    stated = {name: row[name] for name in found if name in row}
    assert stated
    assert {name: found[name] for name in stated} == stated
    assert row["source"]
    assert row["grade"] in {"R", "T", "S", "E", "D"}


def test_gpt3_reduces_11_19_gb_of_gradients_on_the_first_stage():
    """4 B x 2.797 B weights on stage 0 of GPT-3 175B, TP8 PP8 DP16, and 2 B x as many gathered: what Megatron moves, put
    right against AICB's 12.55 GB (grade R). Their count leaves the 2048 x h learned positions out; GPT-3 has them.
    """
    row = next(row for row in TRUTH["rows"] if row["name"].startswith("GPT-3 175B tied"))
    positions = 2048 * 12288
    for op, width in (("reduce_scatter", 4), ("all_gather", 2)):
        (event,) = ledger_of(row).filter(strategy="zero1", op=op)
        assert event.payload_bytes / width - positions == pytest.approx(2.797e9, rel=5e-4)
