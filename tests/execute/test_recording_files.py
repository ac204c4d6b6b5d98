"""Files of recordings that anyone may have written: read strictly, refused in a sentence, shown without being obeyed."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from meshcost.execute.recording_file import RecordedDtype

CALL = {
    "op": "all_reduce",
    "ranks": [0, 1],
    "in_bytes": 8,
    "out_bytes": 8,
    "dtype": "fp32",
    "phase": "backward",
}
OURS = {"meshcost_recording": 1, "rank": 0, "world_size": 2, "about": {}}
THEIRS = {**CALL, "raw": "c10d.allreduce_", "dtype": "float32", "phase": "s0bwd"}


def ours(**changes: Any) -> str:
    """A recording of ours whose second call, on line 3, is changed."""
    lines = ",\n".join(json.dumps(call) for call in (CALL, {**CALL, **changes}))
    return f'{json.dumps(OURS)[:-1]}, "calls": [\n{lines}\n]}}'


def theirs(**changes: Any) -> str:
    """A recording of others whose second call, on line 3, is changed."""
    lines = ",\n".join(json.dumps(call) for call in (THEIRS, {**THEIRS, **changes}))
    return f'{{"config": {{"world": 2}}, "ranks": {{"0": [\n{lines}\n]}}}}'


CALLS = "line 3: calls.1."
REFUSED: list[tuple[str, str]] = [
    (ours(in_bytes="28"), CALLS + "in_bytes: '28' is not legal"),
    (ours(in_bytes=-28), CALLS + "in_bytes: -28 is not legal"),
    (ours(in_bytes=2**70), CALLS + "in_bytes"),
    (ours(in_bytes=1.5), CALLS + "in_bytes: 1.5 is not legal"),
    (ours(in_bytes=True), CALLS + "in_bytes: true is not legal"),
    (ours(in_bytes=float("nan")), "NaN is no number in JSON"),
    (ours(op="teleport"), CALLS + "op: 'teleport' is not known. Choose all_reduce"),
    (ours(dtype="fp31"), CALLS + "dtype: 'fp31' is not known"),
    (ours(phase="sideways"), CALLS + "phase: 'sideways' is not known. Choose setup"),
    (ours(ranks=[0, 2]), CALLS + "ranks: 2 is no rank of a world of 2; ranks are 0 to 1."),
    (ours(ranks=[0, -1]), CALLS + "ranks: -1 is no rank"),
    (ours(ranks="01"), CALLS + "ranks: '01' is not legal"),
    (ours(root=2), CALLS + "root: 2 is no rank"),
    (ours(bytes=3), CALLS + "bytes: unknown field."),
    (ours(module="x" * 3000), CALLS + "module"),
    (ours().replace('"rank": 0', '"rank": 5'), "line 1: rank: 5 is no rank"),
    (ours().replace('"world_size": 2', '"world_size": 0'), "line 1: world_size: 0 is not legal"),
    (f'{{"recordings": [\n{ours()},\n{ours()}]}}', "line 6: recordings.1.rank: rank 0 is recorded twice."),
    ('{"recordings": []}', "recordings"),
    ('{"recordings": [\n7]}', "line 2: recordings.0: 7 is not a mapping"),
    (theirs(in_bytes="28"), "line 3: ranks.0.1.in_bytes: '28' is not legal"),
    (theirs(op="teleport"), "line 3: ranks.0.1.op: 'teleport' is not known"),
    (theirs(phase="sideways"), "line 3: ranks.0.1: phase 'sideways' is not known."),
    (theirs(ranks=[0, 7]), "line 3: ranks.0.1: 7 is no rank of a world of 2"),
    (theirs(op="broadcast", root_rank=2), "line 3: ranks.0.1: there is no place 2 in a group of 2."),
    ('{"ranks": {"first": []}, "config": {"world": 2}}', "ranks.first"),
    ("[1]", "neither a ledger nor a recording"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[said[:60] for _, said in REFUSED])
def test_a_file_that_is_no_recording_is_refused_with_its_line(text, said, tmp_path, run):
    path = tmp_path / "step.json"
    path.write_text(text)
    shown = run("record", "--show", path)
    assert (shown.code, shown.out) == (2, "")
    (sentence,) = shown.err.splitlines()
    assert sentence.startswith(f"meshcost: {path}: ")
    assert said in sentence


def test_of_many_problems_the_first_ten_are_said(tmp_path, run):
    path = tmp_path / "step.json"
    path.write_text(json.dumps({**OURS, "calls": [{**CALL, "in_bytes": -1}] * 30}))
    said = run("record", "--show", path).err.splitlines()
    assert len(said) == 11
    assert said[-1].endswith("20 more problems of this kind.")


@pytest.mark.parametrize("make", [ours, theirs])
def test_what_a_terminal_would_obey_is_written_out(make, tmp_path, run):
    path = tmp_path / "step.json"
    name = {"module" if make is ours else "fqn": "layers\x1b]0;owned\x07\x1b[2J\n.0\u202e"}
    path.write_text(make(**name))
    shown = run("record", "--show", path)
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[3].endswith(r"layers\x1b]0;owned\x07\x1b[2J\n.0\u202e")
    path.write_text(make(op="\x1b[2J"))
    assert r"\x1b[2J" in run("record", "--show", path).err


def test_the_name_of_a_model_is_not_obeyed_either(tmp_path, run):
    path = tmp_path / "job.yaml"
    path.write_text(
        'model: {name: "a\\e[2Jb", model_type: llama, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, '
        "intermediate_size: 96, vocab_size: 128}\nparallel: {data: 2}\nbatch: {sequence: 8, global_batch: 2}\n"
    )
    for form in ("table", "markdown", "csv"):
        shown = run("analyze", path, "--format", form)
        assert shown.code == 0, shown.err
        assert "\x1b" not in shown.out


def test_every_data_type_of_torch_can_stand_in_a_recording():
    torch = pytest.importorskip("torch")
    from meshcost.execute.record_ops import SIGNATURES, dtype_of
    from meshcost.execute.recording_file import RecordedOp

    kinds = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    names = {dtype_of(SimpleNamespace(dtype=kind)) for kind in kinds}
    assert names <= set(RecordedDtype.__args__)
    assert {signature.op for signature in SIGNATURES.values()} <= set(RecordedOp.__args__)
