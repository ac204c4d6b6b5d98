"""Recordings as data: reading, writing, comparing."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import meshcost
from meshcost import pytest_plugin
from meshcost.errors import ExecutionError, LedgerError
from meshcost.execute.recording import RecordedCall, Recording, axes_of
from meshcost.execute.recording_compare import (
    FOLDER,
    UPDATE,
    NotTheSame,
    assert_same,
    differences,
    first_out_of_order,
    read_recordings,
    text_of,
)
from meshcost.execute.recording_truth import read_phase, read_truth
from meshcost.job import Job, analyze
from meshcost.mesh import Mesh

pytest.importorskip("torch")

# pytester forgets every module that a run in this process imported, and torch cannot register its operations twice.
import meshcost.execute.trace

pytest_plugins = ("pytester",)

GATHER = RecordedCall("all_gather", (0, 1, 2, 3), 2, 8, "bf16", "forward", "layers.0", axes=("data",))
REDUCE = RecordedCall("all_reduce", (0, 1), 4, 4, "fp32", "clip", reduce_op="sum", raw="c10d.allreduce_")
SEND = RecordedCall("send", (0, 2), 4, 0, "int32", "setup")
STEPS = Recording(
    0, 4, (SEND, *(replace(call, step=step) for step in (0, 1, 2) for call in (GATHER, REDUCE)))
)


def test_json_gives_the_same_recording_back(tmp_path):
    assert Recording.from_dict(json.loads(json.dumps(STEPS.to_dict()))) == STEPS
    STEPS.save(tmp_path / "step.json")
    assert Recording.from_dict(json.loads((tmp_path / "step.json").read_text())) == STEPS


@pytest.mark.parametrize(
    "broken", [{}, [], {"meshcost_recording": 2}, {**STEPS.to_dict(), "calls": [{"op": 1}]}]
)
def test_anything_else_is_refused(broken):
    with pytest.raises(LedgerError):
        Recording.from_dict(broken)


def test_a_steady_step_is_the_last_that_repeats_the_one_before():
    assert STEPS.steady_step == 2
    assert STEPS.steady().calls == (replace(GATHER, step=2), replace(REDUCE, step=2))
    changed = replace(STEPS, calls=(*STEPS.calls, replace(GATHER, step=3)))
    assert changed.steady_step == 2
    assert replace(STEPS, calls=STEPS.calls[:3]).steady_step is None


def test_a_ledger_of_a_recording_counts_by_kind():
    ledger = STEPS.to_ledger(Mesh({"data": 4}))
    assert [(x.op, x.axes, x.phase, x.payload_bytes, x.calls) for x in ledger] == [
        ("send", ("data",), "forward", 4, 1),
        ("all_gather", ("data",), "forward", 8, 3),
        ("all_reduce", ("ranks 0,1",), "optimizer", 4, 3),
    ]
    assert ledger.compare(STEPS.to_ledger(Mesh({"data": 4}))) == ()
    fewer = replace(STEPS, calls=STEPS.calls[:-2]).to_ledger(Mesh({"data": 4}))
    assert [(x.op, x.calls, x.other_calls) for x in ledger.compare(fewer)] == [
        ("all_gather", 3, 2), ("all_reduce", 3, 2),
    ]  # fmt: skip


def test_groups_are_named_by_the_fewest_axes():
    mesh = Mesh({"tensor": 2, "data": 2, "pipeline": 2})
    assert axes_of(mesh, 0, (0, 1)) == ("tensor",)
    assert axes_of(mesh, 3, (1, 3)) == ("data",)
    assert axes_of(mesh, 0, (0, 1, 2, 3)) == ("tensor", "data")
    assert axes_of(mesh, 0, (4, 0), pair=True) == ("pipeline",)
    assert axes_of(mesh, 0, (0, 3)) == axes_of(mesh, 0, (0,)) == axes_of(mesh, 0, (-1, 9)) == ()
    assert axes_of(Mesh({"data": 8}, {"expert": 4, "expert_data": 2}), 0, (0, 1, 2, 3)) == ("expert",)


def test_phases_of_others_are_read():
    assert read_phase("s12a3fwd") == (12, 3, "forward")
    assert read_phase("s0METABst2") == (0, None, "backward")
    assert read_phase("s1B3st0") == (1, 3, "backward")
    assert [read_phase(text)[2] for text in ("init", "s0pp", "s1opt", "s0loss", "clip_g0")] == [
        "setup", "", "optimizer", "forward", "clip",
    ]  # fmt: skip
    with pytest.raises(LedgerError, match="sideways"):
        read_phase("sideways")


def test_places_in_a_group_of_others_become_ranks():
    call = {
        "in_bytes": 4,
        "out_bytes": 0,
        "dtype": "float32",
        "phase": "s0",
        "raw": "c10d.send",
        "ranks": [1, 5],
    }
    calls = [{**call, "op": "send", "dst": 1}, {**call, "op": "broadcast", "root_rank": 1}]
    recording = read_truth({"config": {"world": 8}, "ranks": {"1": calls}})[1]
    assert [(x.ranks, x.root, x.dtype) for x in recording] == [((1, 5), None, "fp32"), ((1, 5), 5, "fp32")]
    with pytest.raises(LedgerError):
        read_truth({"ranks": {}})


def test_differences_count_both_sides_and_say_the_likely_reason():
    found = differences(STEPS, STEPS.calls[:-1])
    assert [(x.op, x.predicted, x.observed) for x in found] == [("all_reduce", 3, 2)]
    padded = replace(GATHER, out_bytes=200), replace(GATHER, out_bytes=208)
    assert "padding" in differences(padded[:1], padded[1:])[0].reason
    (vote,) = differences((), (SEND,))
    assert "first step" in vote.reason
    assert "observed 1    <-- pipelining" in text_of([vote], "toy")


ROOT = replace(GATHER, module="", out_bytes=16, in_bytes=4)


def test_a_reason_is_named_only_where_what_was_seen_fits_it():
    def reasons(expected, found):
        return [x.reason for x in differences(expected, found)]

    assert reasons([], [ROOT]) == [""]
    assert "root group" in reasons([GATHER], [GATHER, ROOT])[0]
    assert reasons([GATHER], [GATHER, replace(ROOT, module="head")]) == [""]
    assert reasons([replace(REDUCE, phase="backward")], []) == [""]
    larger = replace(GATHER, out_bytes=200), replace(GATHER, out_bytes=206)
    assert reasons(larger[:1], larger[1:]) == ["206 B on the other side", "200 B on the other side"]
    agreed = [
        replace(REDUCE, op="broadcast", dtype="int32", in_bytes=size, out_bytes=size) for size in (88, 8)
    ]
    assert reasons([], agreed[:1]) == [""]
    assert all("agrees on its buckets" in reason for reason in reasons([], agreed))


def test_a_side_without_clipping_or_phases_can_be_compared():
    assert differences([REDUCE], [replace(REDUCE, phase="optimizer")]) == ()
    assert differences([REDUCE], [replace(REDUCE, phase="")]) == ()
    assert len(differences([REDUCE], [replace(REDUCE, phase="backward")])) == 2


def test_the_order_is_compared_call_by_call():
    assert first_out_of_order([GATHER, REDUCE], [GATHER, REDUCE]) is None
    assert first_out_of_order([GATHER, REDUCE], [REDUCE, GATHER]) == 0
    assert first_out_of_order([GATHER, REDUCE], [GATHER]) == 1


def test_assert_same_passes_for_the_same_and_fails_for_more(tmp_path, monkeypatch):
    path = tmp_path / "step.json"
    with pytest.raises(NotTheSame, match="MESHCOST_UPDATE=1, or with pytest --meshcost-update"):
        assert_same(STEPS, path)
    monkeypatch.setenv("MESHCOST_UPDATE", "1")
    assert_same(STEPS, path)
    monkeypatch.delenv("MESHCOST_UPDATE")
    assert_same(STEPS, path)
    more = replace(STEPS, calls=(*STEPS.calls, REDUCE))
    with pytest.raises(AssertionError, match="expected 3   found 4"):
        assert_same(more, path)
    assert_same(more, path, tolerance=0.34)
    with pytest.raises(NotTheSame) as said:
        assert_same(more, path, tolerance=0.33)
    title, row = str(said.value).splitlines()
    assert title.endswith("where step.json is what is expected, give or take 0.33 of the bytes of each kind")
    assert " ".join(row.split()) == "all_reduce clip fp32 expected 12 B found 16 B +33.33%"
    for share in (-0.1, float("nan")):
        with pytest.raises(LedgerError, match=r"tolerance: .* is no share of bytes"):
            assert_same(STEPS, path, tolerance=share)
    with pytest.raises(NotTheSame, match=r"step.json: is of a world of 4 ranks, .* of one of 8\."):
        assert_same(replace(STEPS, world_size=8), path)


def test_assert_same_compares_ranks_with_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("MESHCOST_UPDATE", "1")
    both = {0: STEPS, 1: replace(STEPS, rank=1)}
    assert_same(both, tmp_path / "both.json")
    monkeypatch.delenv("MESHCOST_UPDATE")
    assert_same(both, tmp_path / "both.json")
    with pytest.raises(NotTheSame, match="ranks"):
        assert_same({0: STEPS}, tmp_path / "both.json")


def test_assert_same_holds_a_ledger_against_a_ledger(tmp_path):
    batch = {"sequence": 64, "global_batch": 8}
    ledger = analyze(Job(model="gpt2", parallel={"data": 4}, batch=batch))
    (tmp_path / "bill.json").write_text(json.dumps(ledger.to_dict()))
    assert_same(ledger, tmp_path / "bill.json")
    zero = analyze(Job(model="gpt2", parallel={"data": {"strategy": "zero3", "size": 4}}, batch=batch))
    with pytest.raises(
        NotTheSame, match=r"rank 0, where bill.json is what is expected\n.*all_gather"
    ) as said:
        assert_same(zero, tmp_path / "bill.json")
    assert "predicted" not in str(said.value)


def test_two_bills_that_differ_in_every_stage_are_told_apart_by_stage(tmp_path):
    batch = {"sequence": 64, "global_batch": 8}
    bills = [
        analyze(Job(model="gpt2", parallel={"pipeline": 3, "data": size}, batch=batch)) for size in (2, 4)
    ]
    (tmp_path / "bill.json").write_text(json.dumps(bills[0].to_dict()))
    with pytest.raises(
        NotTheSame, match=r"bill.json: is of a world of 6 ranks, and what was observed of one of 12\."
    ):
        assert_same(bills[1], tmp_path / "bill.json")
    longer = analyze(Job(model="gpt2", parallel={"pipeline": 3, "data": 2}, batch={**batch, "sequence": 128}))
    with pytest.raises(NotTheSame) as said:
        assert_same(longer, tmp_path / "bill.json")
    titles = [line for line in str(said.value).splitlines() if line.startswith("mismatch")]
    assert [title.split(",")[0] for title in titles] == [f"mismatch: stage {stage}" for stage in range(3)]


@pytest.mark.parametrize("text", ["[]", "1", "{", "{}"])
def test_a_file_that_is_no_recording_is_named(tmp_path, text):
    path = tmp_path / "step.json"
    path.write_text(text)
    with pytest.raises(LedgerError, match="step"):
        assert_same(STEPS, path)
    with pytest.raises(LedgerError, match="step"):
        read_recordings(path)


def test_what_watches_torch_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(vars(meshcost), "record", raising=False)
    with pytest.raises(ExecutionError, match=r"pip install 'meshcost\[torch\]'"):
        meshcost.record()


def test_the_log_joins_equal_calls():
    log = replace(STEPS, calls=(GATHER, GATHER)).log()
    titles = ["phase", "calls", "operation", "payload", "dtype", "group", "module"]
    assert log.splitlines()[1].split() == titles
    assert log.splitlines()[2].split() == [
        "forward",
        "2",
        "x",
        "all_gather",
        "8",
        "B",
        "bf16",
        "data",
        "layers.0",
    ]


PLUGGED = """
import meshcost as mc
from meshcost.execute.recording import RecordedCall

CALLS = (RecordedCall("all_reduce", (0, 1), {size}, {size}, "fp32", "backward"),)


def test_step(meshcost_same):
    meshcost_same(mc.Recording(0, 2, CALLS))


def test_own_path():
    mc.assert_same(mc.Recording(0, 2, CALLS), "step.json", tolerance=0)
"""


def test_the_plugin_fails_tests_when_a_change_adds_bytes(pytester):
    def run(size: int, *options: str) -> dict[str, int]:
        pytester.makepyfile(test_plugged=PLUGGED.replace("{size}", str(size)))
        return pytester.runpytest_inprocess("-p", "no:randomly", *options).parseoutcomes()

    assert run(4) == {"failed": 2}
    assert run(4, "--meshcost-update") == {"passed": 2}
    assert os.environ.get(UPDATE) is None
    assert (pytester.path / "test_step.json").is_file()
    assert run(4) == {"passed": 2}
    # Two digits: bytecode of the same second is told apart by the size of its file.
    assert run(16) == {"failed": 2}
    shown = pytester.runpytest_inprocess("-p", "no:randomly").stdout.str()
    assert "mismatch: rank 0, where test_step.json is what is expected" in shown
    assert "recording_compare.py" not in shown
    assert "pytest_plugin.py" not in shown


def test_the_example_of_the_readme_passes_and_a_relative_path_lies_beside_the_test(pytester):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (example,) = re.findall(r"```python\n(import pytest\n.*?)```", readme, re.DOTALL)
    folder = pytester.mkdir("inner")
    (folder / "test_step.py").write_text(example)

    def run(*options: str) -> dict[str, int]:
        return pytester.runpytest_inprocess("-p", "no:randomly", *options).parseoutcomes()

    assert run("--meshcost-update")["passed"] == 2
    assert (folder / "bill.json").is_file()
    assert run()["passed"] == 2
    (folder / "test_step.py").write_text(example.replace("(*model, model)", "(model,)"))
    assert {**run(), "warnings": 0} == {"passed": 1, "failed": 1, "warnings": 0}


def test_the_plugin_and_the_comparison_mean_the_same_variable():
    assert (pytest_plugin.UPDATE, pytest_plugin.FOLDER) == (UPDATE, FOLDER)
