"""The command line that holds PyTorch's own calls against the prediction."""

import json

import pytest

pytest.importorskip("torch")

from meshcost.execute import trace_check
from meshcost.execute.trace_check import TraceCheck
from meshcost.execute.trace_scale import scaled
from meshcost.job import Job, analyze, load

JOB = """\
model: {model_type: llama, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4,
        num_key_value_heads: 2, vocab_size: 256}
parallel: {data: {strategy: fsdp, size: 2}}
batch: {sequence: 32, micro_batch: 1, global_batch: 4}
precision: {weights: fp32}
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_equal_calls_are_said_and_exit_0(run, path):
    done = run("trace", path, "--all")
    assert done.code == 0, done.out + done.err
    assert "llama: fsdp on data 2 (torch " in done.out
    assert "1 step." in done.out  # which is steady at once
    assert "0 (steady state)" in done.out
    assert "of 2 ranks, each as predicted and in order." in done.out


def test_a_difference_is_shown_with_its_likely_reason_and_exits_1(run, path, monkeypatch):
    def one_forgotten(job):
        ledger = analyze(job)
        kept = tuple(
            x for x in ledger if (x.op, x.phase) != ("all_gather", "forward") or x.payload_bytes < 10**5
        )
        assert len(kept) < len(ledger.events)
        return type(ledger)(kept, ledger.mesh, ledger.program, about=ledger.about)

    monkeypatch.setattr(trace_check, "analyze", one_forgotten)
    done = run("trace", path)
    assert done.code == 1
    assert "mismatch: fsdp on data 2 (torch " in done.out
    # The embedding and the head are in no unit of their own here.
    assert "predicted 0   observed 2    <-- the root group: weights in no unit of their own" in done.out
    assert "different on 1 rank." in done.out
    document = json.loads(run("trace", path, "--steps", "1", "--format", "json").out)
    assert document["equal"] is False
    (rank,) = document["ranks"]
    assert rank["predicted"] == []
    assert {(row["op"], row["phase"], row["step"]) for row in rank["observed"]} == {
        ("all_gather", "forward", 0)
    }


def test_another_order_is_a_difference(path):
    check = TraceCheck(path, steps=1)
    recording = next(iter(trace_of(check).values()))
    turned = type(recording)(0, 2, tuple(reversed(recording.calls)), recording.about)
    (step,) = check.hold(turned)
    assert (step.verdict, step.mismatches) == ("OTHER ORDER", ())
    assert "not the predicted one" in step.why("toy")


def trace_of(check):
    from meshcost.execute.trace import trace

    return trace(check.job, [0], steps=1)


@pytest.mark.parametrize(
    ("model", "parallel"),
    [
        (
            "llama-3-8b",
            {"data": {"strategy": "fsdp", "size": 4}, "tensor": {"size": 8, "sequence_parallel": True}},
        ),
        ("mixtral-8x7b", {"data": 8, "expert": 4}),
        ("deepseek-v3", {"data": {"strategy": "fsdp", "size": 8}, "expert": 8}),
        ("llama-3-8b", {"data": 2, "pipeline": 4}),
    ],
)
def test_a_scaled_model_keeps_its_family_its_layout_and_its_kinds_of_blocks(model, parallel):
    job = Job(model=model, parallel=parallel, framework="torch", batch={"sequence": 4096, "global_batch": 16})
    small = scaled(job)
    before, after = job.setting.model, small.setting.model
    assert after.family == before.family
    assert set(after.pattern) == set(before.pattern)
    assert small.mesh.axes == job.mesh.axes
    assert after.weights_total < before.weights_total / 1000


def test_a_step_of_the_job_changes_only_the_last_one(path):
    job = load(path)
    first = job.model_copy(update={"torch": job.torch.model_copy(update={"step": 0})})
    assert first.setting.torch.step == 0
    assert job.setting.torch.step is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rank", "2"], "rank 2"),
        (["--rank", "0", "--all"], "trace: --rank asks for one rank and --all"),
        (["--steps", "0"], "steps"),
    ],
)
def test_a_mistake_is_one_sentence(run, path, options, said):
    done = run("trace", path, *options)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_real_ranks_that_do_not_fit_are_refused_before_they_start(run, tmp_path):
    path = tmp_path / "large.yaml"
    path.write_text("model: llama-3.1-405b\nparallel: {data: 4}\nbatch: {sequence: 64, global_batch: 4}\n")
    done = run("trace", path, "--real")
    assert done.code == 2
    assert "Add --scale" in done.err


SHAPES = """\
model: {model_type: llama, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 4,
        num_key_value_heads: 2, vocab_size: 256, tie_word_embeddings: false}
parallel: {pipeline: {size: 2, schedule: 1f1b}, data: {strategy: fsdp, size: 2}}
batch: {sequence: 32, micro_batch: 1, global_batch: 4}
precision: {weights: fp32}
torch: {static_shapes: false}
"""


def test_the_step_in_which_stages_find_out_shapes_is_run_and_not_compared(run, tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(SHAPES)
    done = run("trace", path, "--format", "json")
    document = json.loads(done.out)
    assert (done.code, document["equal"], document["steady_from_step"]) == (0, True, 1)
    assert "Not compared: step 0, in which stages without static_shapes" in document["notes"][0]
    refused = run("trace", path, "--steps", "1")
    assert (refused.code, "Choose at least 2." in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("false}", "false, step: 0}"), "torch.step: without static_shapes, "),
        (("{strategy: fsdp, size: 2}", "2"), "torch.static_shapes: DistributedDataParallel takes"),
    ],
)
def test_a_step_that_is_not_predicted_is_refused(run, tmp_path, change, said):
    path = tmp_path / "job.yaml"
    path.write_text(SHAPES.replace(*change))
    done = run("analyze", path, "--framework", "torch")
    assert (done.code, said in done.err) == (2, True)
    assert run("analyze", path).code == 0
