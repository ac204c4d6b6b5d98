"""The recorder on code that is not ours: phases, modules, groups, and what it leaves behind."""

import json
import subprocess
import sys
import textwrap

import pytest

import meshcost
from meshcost.errors import ExecutionError

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402 - needs torch
from torch import nn  # noqa: E402 - needs torch
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402 - needs torch

from meshcost.execute import record_ops  # noqa: E402 - needs torch
from meshcost.execute.record import record  # noqa: E402 - needs torch
from meshcost.execute.record_script import recorded_command  # noqa: E402 - needs torch
from meshcost.execute.recording_compare import read_recordings  # noqa: E402 - needs torch
from meshcost.execute.trace_world import fake_world  # noqa: E402 - needs torch

SCRIPT = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(int(sys.argv[1])))
optimizer = torch.optim.SGD([weight])
dist.broadcast(weight.data, 0)
for step in range(4):
    loss = torch.nn.functional.relu(weight).sum()
    torch.nn.Identity()(weight).sum().backward()
    dist.all_reduce(weight.grad)
    if step == 0:
        dist.barrier()
    optimizer.step()
dist.destroy_process_group()
"""

#: Training without any module, and an optimizer that may step.
BARE = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(int(sys.argv[1])))
optimizer = torch.optim.SGD([weight])
for step in range(4):
    dist.all_gather([torch.ones(5)], torch.ones(5))
    weight.sum().backward()
    dist.all_reduce(weight.grad)
    if len(sys.argv) == 2:
        optimizer.step()
dist.destroy_process_group()
"""


@pytest.fixture
def alone(monkeypatch):
    """What a launcher says to a process that is the only one."""
    said = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in said.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def world():
    with fake_world(2, 4):
        yield


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), Summed()

    def forward(self, x):
        return self.second(self.first(x))


class Summed(nn.Module):
    def forward(self, x):
        return Sum.apply(x)


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        dist.broadcast(gradient.clone(), 1)
        return gradient


def train(model, steps=2, micro_batches=2):
    optimizer = torch.optim.AdamW(model.parameters())
    dist.barrier()
    for _ in range(steps):
        for _ in range(micro_batches):
            model(torch.ones(2, 4)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        dist.all_reduce(torch.ones(1))
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(torch.ones(3, dtype=torch.int64), op=dist.ReduceOp.MAX)


def test_a_step_is_told_from_setup_to_optimizer(world):
    with record() as recorder:
        train(Doubled())
    setup, *calls = recorder.calls
    assert (setup.op, setup.phase, setup.step, setup.in_bytes) == ("barrier", "setup", 0, 0)
    one = [
        ("all_reduce", "forward", "second", 0, 32, "fp32", "sum"),
        ("broadcast", "backward", "second", 0, 32, "fp32", ""),
        ("all_reduce", "forward", "second", 1, 32, "fp32", "sum"),
        ("broadcast", "backward", "second", 1, 32, "fp32", ""),
        ("all_reduce", "clip", "", None, 4, "fp32", "sum"),
        ("all_reduce", "optimizer", "", None, 24, "int64", "max"),
    ]
    seen = [(x.op, x.phase, x.module, x.micro_batch, x.in_bytes, x.dtype, x.reduce_op) for x in calls]
    assert seen == one * 2
    assert [call.step for call in calls] == [0] * 6 + [1] * 6
    assert {call.ranks for call in calls} == {(0, 1, 2, 3)}
    assert {call.root for call in calls if call.op == "broadcast"} == {1}
    assert recorder.recording.steady_step == 1


def test_messages_have_a_source_and_a_destination(world):
    group = dist.new_group([1, 2])
    with record(meshcost.Mesh({"data": 4})) as recorder:
        dist.send(torch.ones(3), 3)
        dist.recv(torch.ones(2, dtype=torch.bfloat16), 1, group=group)
    assert [(x.op, x.ranks, x.in_bytes, x.out_bytes, x.dtype, x.axes) for x in recorder.calls] == [
        ("send", (2, 3), 12, 0, "fp32", ("data",)),
        ("recv", (1, 2), 0, 4, "bf16", ("data",)),
    ]


def test_groups_of_a_device_mesh_have_its_names(world):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    with record(mesh) as recorder:
        for name in ("outer", "inner"):
            dist.all_reduce(torch.ones(1), group=mesh[name].get_group())
        dist.all_reduce(torch.ones(1))
    assert [call.axes for call in recorder.calls] == [("outer",), ("inner",), ("outer", "inner")]
    assert recorder.calls[0].ranks == (0, 2)


def test_an_operation_that_is_not_known_is_kept(world, monkeypatch):
    known = {name: signature for name, signature in record_ops.SIGNATURES.items() if "allreduce" not in name}
    monkeypatch.setattr(record_ops, "SIGNATURES", known)
    with record() as recorder:
        dist.all_reduce(torch.ones(5))
    (call,) = recorder.calls
    assert (call.op, call.raw, call.ranks, call.dtype) == ("unknown", "c10d.allreduce_", (0, 1, 2, 3), "fp32")
    assert call.in_bytes == 20
    assert "unknown c10d.allreduce_" in recorder.log()


def test_every_form_of_a_collective_has_its_bytes(world):
    parts, whole = [torch.ones(2) for _ in range(4)], torch.ones(8)
    with record() as recorder:
        dist.all_gather(parts, torch.ones(2))
        dist.reduce_scatter(torch.ones(2), parts)
        dist.all_to_all(parts, parts)
        dist.all_to_all_single(whole, whole.clone(), [4, 2, 1, 1], [1, 1, 2, 4])
        dist.reduce(whole, 2)
        dist.gather(torch.ones(2), parts, dst=2)
        dist.scatter(torch.ones(2), parts, src=2)
    assert [(x.op, x.in_bytes, x.out_bytes) for x in recorder.calls] == [
        ("all_gather", 8, 32),
        ("reduce_scatter", 32, 8),
        ("all_to_all", 32, 32),
        ("all_to_all", 32, 32),
        ("reduce", 32, 32),
        ("gather", 8, 32),
        ("scatter", 32, 8),
    ]


def test_a_recording_leaves_nothing_behind(world):
    before = nn.Module.__call__, torch.autograd._engine_run_backward
    with pytest.raises(RuntimeError), record():
        nn.Linear(4, 4)(torch.ones(5))
    assert before == (nn.Module.__call__, torch.autograd._engine_run_backward)
    with record() as recorder:
        pass
    train(Doubled(), steps=1)
    assert recorder.calls == ()


def test_recomputation_belongs_to_the_backward_pass(world):
    model = Doubled()
    with record() as recorder:
        torch.utils.checkpoint.checkpoint(
            model, torch.ones(2, 4, requires_grad=True), use_reentrant=True
        ).sum().backward()
    assert [call.phase for call in recorder.calls] == ["forward", "backward", "backward"]


def test_the_script_is_found_in_a_command(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    made = recorded_command(["torchrun", "--nnodes", "1", str(script), "x"], tmp_path, step=3)
    assert made[:3] == ["torchrun", "--nnodes", "1"]
    assert made[4:] == ["--out", str(tmp_path), "--step", "3", str(script), "x"]
    made = recorded_command(["python", "-m", "torch.distributed.run", "-m", "mine.train"], "out")
    assert made[:3] == ["python", "-m", "torch.distributed.run"]
    assert made[-2:] == ["--module", "mine.train"]
    with pytest.raises(ExecutionError, match="names no script"):
        recorded_command(["torchrun", "missing.py"], "out")


@pytest.mark.gloo
@pytest.mark.slow
@pytest.mark.xdist_group("ranks")
def test_a_script_is_recorded_behind_torchrun_in_its_steady_state(tmp_path, run):
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(textwrap.dedent(SCRIPT))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run("record", "--out", out, "--", *launcher, script, "7")
    assert done.code == 0, done.err
    assert "all_reduce                 28 B fp32  ranks 0,1" in done.out
    assert "the same on rank 1" in done.out
    assert "step 3 of 4 steps, the steady state" in done.out
    recordings = read_recordings(out / "rank-0.json") | read_recordings(out / "rank-1.json")
    assert sorted(recordings) == [0, 1]
    for rank, recording in recordings.items():
        (call,) = recording
        assert (call.op, call.ranks, call.in_bytes, call.phase) == ("all_reduce", (0, 1), 28, "backward")
        assert (recording.rank, recording.world_size) == (rank, 2)
        assert (recording.about["step"], recording.about["steady"]) == (3, True)


def test_a_script_without_modules_is_recorded_step_by_step(tmp_path, run, alone):
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(BARE)
    done = run("record", "--out", out, "--format", "json", "--step", "2", sys.executable, script, "9")
    assert done.code == 0, done.err
    (recording,) = json.loads(done.out)["recordings"]
    assert (recording["about"]["step"], recording["about"]["steps"]) == (2, 4)
    assert [(call["op"], call["phase"], call["in_bytes"]) for call in recording["calls"]] == [
        ("all_gather", "forward", 20),
        ("all_reduce", "backward", 36),
    ]
    for path in (out / "rank-0.json", out):
        shown = run("record", "--show", path)
        assert shown.code == 0, shown.err
        title, head, _, row, *_ = shown.out.splitlines()
        assert title == "rank 0 of 1, step 2: 2 calls, 56 B"
        assert head.split()[-1] == "module"
        assert row.split() == ["backward", "all_reduce", "36", "B", "fp32", "ranks", "0"]
    missing = run("record", "--show", tmp_path / "none.json")
    assert (missing.code, "none.json: " in missing.err) == (2, True)
    empty = run("record", "--show", tmp_path)
    assert (empty.code, "a folder without rank-*.json" in empty.err) == (2, True)


def test_that_no_step_was_seen_is_said(tmp_path, run, alone):
    script = tmp_path / "train.py"
    script.write_text(BARE)
    done = run("record", "--out", tmp_path / "out", sys.executable, script, "9", "no optimizer")
    assert done.code == 0, done.err
    assert "No optimizer stepped, so where a step ends is not known: all calls stand as one step." in done.out
    assert done.out.count("all_reduce") == 4


def test_a_command_that_fails_keeps_its_status_and_leaves_nothing(tmp_path, run):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(3)\n")
    done = run("record", "--out", tmp_path / "out", sys.executable, script)
    assert done.code == 3
    assert done.err.splitlines()[-1].startswith("meshcost: record: ")
    assert "ended with status 3." in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("import torch\n", "no rank called a collective"),
        (
            "import torch, torch.distributed as dist\n"
            "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
            "for _ in range(3): dist.all_reduce(torch.ones(2))\n",
            "a rank made 3 calls, but none of them in a training step",
        ),
    ],
)
def test_a_script_without_a_training_step_is_told_apart(tmp_path, run, script, said):
    path, out = tmp_path / "train.py", tmp_path / "out"
    out.mkdir()
    path.write_text(script)
    done = run("record", "--out", out, sys.executable, path)
    assert done.code == 2
    assert said in done.err
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["no-such-program", "train.py"], "no-such-program: No such file"),
        (["torchrun", "missing.py"], "names no script"),
    ],
)
def test_a_mistake_is_one_sentence(command, said, tmp_path, run, monkeypatch):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    done = run("record", "--", *command)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize("also", [["--step", "7"], ["--", "python", "train.py"]])
def test_showing_runs_nothing_and_keeps_no_step(also, tmp_path, run):
    done = run("record", "--show", tmp_path, *also)
    assert done.code == 2
    assert "--show runs nothing and keeps no step" in done.err


def test_recording_as_data_needs_no_torch():
    code = "import sys, meshcost; meshcost.Recording, meshcost.assert_same; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
