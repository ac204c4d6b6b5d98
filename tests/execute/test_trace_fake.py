"""The trace on the fake group against recordings that were made elsewhere: every call, every field, in order.

Most of those recordings were made on real processes over Gloo. data/torch_2_13.json says where they come from.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshcost.execute.recording import SETUP, Recording
from meshcost.execute.recording_compare import differences, first_out_of_order, text_of
from meshcost.execute.recording_truth import read_truth
from meshcost.job import Job

torch = pytest.importorskip("torch")

from meshcost.execute import trace_rank  # noqa: E402 - needs torch
from meshcost.execute.trace import trace  # noqa: E402 - needs torch
from meshcost.strategies.torch_options import SEPARATE_UNITS, TorchOptions  # noqa: E402 - needs torch

FILE = json.loads((Path(__file__).parent / "data" / "torch_2_13.json").read_text())
DENSE = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 688,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
}
BF16_FP32 = {"weights": "bf16", "reduce": "fp32"}
LAST: Any = {"set_requires_gradient_sync": "last"}


def recorded(name: str) -> dict[int, Recording]:
    entry, calls = FILE["recordings"][name], FILE["calls"]
    ranks = {rank: [calls[number] for number in numbers] for rank, numbers in entry["ranks"].items()}
    return read_truth({"name": name, "config": {"world": entry["world"]}, "ranks": ranks})


def toy(
    parallel: dict[str, Any], clip: bool = True, micro_batches: int = 1, batch: int = 2, **more: Any
) -> Job:
    data = parallel.get("data", 1)
    ranks = data if isinstance(data, int) else data["size"]
    precision = more.pop("precision", {"weights": "fp32"})
    recompute = more.pop("recompute", "none")
    return Job(
        model={**DENSE, **more},
        parallel=parallel,
        batch={"sequence": 128, "micro_batch": batch, "global_batch": batch * micro_batches * ranks},
        precision=precision,
        recompute=recompute,
        scalars={"gradient_norm": clip, "loss": False},
    )


def fsdp(size: int, **more: Any) -> dict[str, Any]:
    return {"data": {"strategy": "fsdp", "size": size, **more}}


def tensor(size: int, sequence: bool = False, vocabulary: bool = False, loss: bool = False) -> dict[str, Any]:
    split = {"sequence_parallel": sequence, "vocabulary_parallel": vocabulary, "loss_parallel": loss}
    return {"tensor": {"size": size, **split}}


def pipeline(size: int, schedule: str) -> dict[str, Any]:
    return {"pipeline": {"size": size, "schedule": schedule}}


def staged(parallel: dict[str, Any], micro_batches: int = 4, **more: Any) -> Job:
    return toy(parallel, clip=False, micro_batches=micro_batches, batch=1, **more)


EVERYTHING = tensor(2, sequence=True, vocabulary=True, loss=True)

#: Name of the recording, the job, options of torch, steps.
CASES: list[tuple[str, Job, dict[str, Any], int]] = [
    ("fsdp2_default_w8", toy(fsdp(8)), {}, 1),
    ("fsdp2_raf_true_w8", toy(fsdp(8)), {"reshard_after_forward": True}, 1),
    ("fsdp2_raf_false_w8", toy(fsdp(8, reshard_after_forward=False)), {}, 1),
    ("fsdp2_raf_int2_w8", toy(fsdp(8)), {"reshard_after_forward": 2}, 1),
    ("hsdp_2x4_mp", toy(fsdp(8, replicate=2), precision=BF16_FP32), {}, 1),
    ("fsdp2_bf16_fp32_w8", toy(fsdp(8), precision=BF16_FP32), {}, 1),
    ("fsdp2_bf16_bf16_w8", toy(fsdp(8), precision={"weights": "bf16"}), {}, 1),
    ("fsdp2_tied_w8", toy(fsdp(8), clip=False, tie_word_embeddings=True), {}, 1),
    ("fsdp2_ac_w8", toy(fsdp(8), clip=False, recompute="full"), {}, 1),
    ("fsdp2_uneven_w8_ffn692", toy(fsdp(8), intermediate_size=692), {}, 1),
    ("fsdp2_wrapemb_w8", toy(fsdp(8)), {"units": SEPARATE_UNITS}, 1),
    ("fsdp2_world1", toy(fsdp(1)), {}, 1),
    ("fsdp2_accum2_plain_w8", toy(fsdp(8), micro_batches=2), {}, 1),
    (
        "fsdp2_accum2_gsync_lastbwd_w8",
        toy(fsdp(8), micro_batches=2),
        {**LAST, "set_is_last_backward": True},
        1,
    ),
    ("ddp_default_w2", toy({"data": 2}, clip=False), {}, 3),
    ("ddp_cap2_w4", toy({"data": 4}, clip=False), {"bucket_cap_mb": 2}, 3),
    ("ddp_findunused_w2", toy({"data": 2}, clip=False), {"find_unused_parameters": True}, 3),
    ("zero1_w4", toy({"data": {"strategy": "zero1", "size": 4}}, clip=False), {}, 2),
    ("tp2_plain", toy(tensor(2)), {}, 1),
    ("tp4_plain_kv4", toy(tensor(4), num_key_value_heads=4), {}, 1),
    ("tp2_pmi", toy(tensor(2)), {"prepare_module_input": True}, 1),
    ("tp2_pmi_ac", toy(tensor(2), clip=False, recompute="full"), {"prepare_module_input": True}, 1),
    ("tp2_sp", toy(tensor(2, sequence=True)), {}, 1),
    ("tp2_sp_ac", toy(tensor(2, sequence=True), clip=False, recompute="full"), {"optimizer": None}, 1),
    ("tp2_sp_vp_lossparallel", toy(EVERYTHING), {}, 1),
    ("tp2_vp_lossparallel", toy(tensor(2, vocabulary=True, loss=True)), {}, 1),
    ("fsdp4_tp2_plain", toy({**fsdp(4), **tensor(2)}), {}, 1),
    ("fsdp4_tp2_sp_vp_lp", toy({**fsdp(4), **EVERYTHING}), {}, 1),
    ("pp4_1f1b", staged(pipeline(4, "1f1b")), {}, 1),
    ("pp4_gpipe", staged(pipeline(4, "gpipe")), {}, 1),
    ("pp4_gpipe_dyn2steps", staged(pipeline(4, "gpipe")), {"static_shapes": False}, 2),
    ("pp2_int1f1b", staged(pipeline(2, "interleaved_1f1b")), {}, 1),
    ("pp2_intzb", staged(pipeline(2, "interleaved_zb")), {}, 1),
    ("pp2_zbv", staged(pipeline(2, "zbv")), {}, 1),
    *(
        (f"pp4_Schedule{name}_fake", staged(pipeline(4, schedule), 8, num_hidden_layers=8), {}, 1)
        for name, schedule in (
            ("Interleaved1F1B", "interleaved_1f1b"),
            ("InterleavedZeroBubble", "interleaved_zb"),
            ("ZBVZeroBubble", "zbv"),
            ("DualPipeV", "dualpipev"),
        )
    ),
    ("pp2_fsdp2_1f1b", staged({**pipeline(2, "1f1b"), **fsdp(2)}), {}, 1),
    (
        "pp2_fsdp2_raffalse_1f1b",
        staged({**pipeline(2, "1f1b"), **fsdp(2)}),
        {"reshard_after_forward": False},
        1,
    ),
    (
        "pp2_fsdp2_tp2_1f1b",
        staged({**pipeline(2, "1f1b"), **fsdp(2), **tensor(2)}),
        {"prepare_module_input": True},
        1,
    ),
    ("pp2_ddp2_1f1b_2steps", staged({**pipeline(2, "1f1b"), "data": 2}), {}, 2),
]


def chosen(ranks: list[int]) -> list[int]:
    """The first rank, the one after it and the last: ends and middle of a pipeline."""
    return sorted({ranks[0], ranks[min(1, len(ranks) - 1)], ranks[-1]})


def without_setup(recording: Recording) -> Recording:
    return replace(recording, calls=tuple(call for call in recording if call.phase != SETUP))


@pytest.mark.parametrize(("name", "job", "options", "steps"), CASES, ids=[case[0] for case in CASES])
def test_a_trace_is_what_was_recorded(
    name: str, job: Job, options: dict[str, Any], steps: int, equal_calls: Callable[..., None]
):
    expected = recorded(name)
    ranks = chosen(sorted(expected))
    traced = trace(job.model_copy(update={"torch": TorchOptions(**options)}), ranks, steps=steps)
    for rank in ranks:
        # Where the phase is not noted, the wrapping in DDP was not recorded either.
        seen = without_setup(traced[rank]) if name.startswith("pp") else traced[rank]
        equal_calls(expected[rank], seen, name, rank)
        fields = [[(x.step, x.raw, x.reduce_op, x.root) for x in side] for side in (expected[rank], seen)]
        assert fields[0] == fields[1]


#: Jobs small enough to be computed, whose calls must be the same where everything is pretended.
PRETENDED = {"ddp_findunused_w2", "tp2_sp_vp_lossparallel", "pp2_fsdp2_1f1b"}


@pytest.mark.parametrize(
    ("name", "job", "options", "steps"),
    [pytest.param(*case, id=case[0]) for case in CASES if case[0] in PRETENDED],
)
def test_computing_and_pretending_call_the_same(
    name: str, job: Job, options: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch
):
    asked = job.model_copy(update={"torch": TorchOptions(**options)})
    computed = trace(asked, [0], steps=steps)
    monkeypatch.setattr(trace_rank, "MOST_COMPUTED", 0)
    assert trace(asked, [0], steps=steps) == computed


def test_experts_trade_tokens_as_recorded():
    experts = {
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }
    job = toy({"data": 4, "expert": 4}, clip=False, **experts)
    (expected,) = recorded("moe_ep4_fake").values()
    (traced,) = trace(job, [0], steps=1).values()
    seen = replace(traced, calls=tuple(call for call in traced if call.op == "all_to_all"))
    assert first_out_of_order(expected, seen) is None, text_of(differences(expected, seen), "experts")


@pytest.mark.parametrize(
    ("name", "method", "dtype"),
    [
        ("cp4_allgather_lb_fp32", "all_gather", "fp32"),
        ("cp4_allgather_lb_bf16", "all_gather", "bf16"),
        ("cp4_alltoall_lb_fp32", "ring", "fp32"),
    ],
)
def test_attention_goes_around_as_recorded(name: str, method: str, dtype: str):
    job = Job(
        model={**DENSE, "num_key_value_heads": 8, "num_hidden_layers": 1},
        parallel={"context": {"size": 4, "method": method}},
        batch={"sequence": 512, "micro_batch": 1, "global_batch": 1},
        precision={"weights": dtype},
        scalars={"gradient_norm": False, "loss": False},
    )
    expected = recorded(name)
    for rank, recording in trace(job, [0, 3], steps=1).items():
        calls = tuple(call for call in recording if call.raw.startswith("_c10d_functional"))
        found = differences(expected[rank], replace(recording, calls=calls))
        assert not found, text_of(found, name)


def test_every_group_is_named_by_axes_of_the_job():
    job = toy({**fsdp(4, replicate=2), **tensor(2), **pipeline(2, "1f1b")}, micro_batches=2)
    (recording,) = trace(job, [0], steps=1).values()
    axes = {call.axes for call in recording}
    assert axes == {("data",), ("replicate",), ("tensor",), ("pipeline",)}


def test_the_calls_of_a_step_know_their_module():
    (recording,) = trace(toy(fsdp(8)), [0], steps=1).values()
    gathered = [call.module for call in recording if call.op == "all_gather"]
    assert gathered[:5] == ["", *(f"model.layers.{layer}" for layer in range(4))]
    assert gathered[5:] == [f"model.layers.{layer}" for layer in (3, 2, 1, 0)]


def test_large_blocks_on_thousands_of_ranks_need_no_memory():
    """Four blocks of Llama 3.1 405B are 13 billion weights: 52 GB with which nothing is computed."""
    wide = {
        "model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128,
        "num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 128256,
    }  # fmt: skip
    job = Job(
        model=wide,
        parallel=fsdp(4096),
        batch={"sequence": 4096, "global_batch": 4096},
        precision=BF16_FP32,
    )
    (recording,) = trace(job, [0], steps=1).values()
    calls = [call for call in recording if call.phase in ("forward", "backward") and len(call.ranks) == 4096]
    # Four blocks and the root: gathered, gathered again without the root, scattered; and the mean loss.
    assert [
        sum(call.op == op for call in calls) for op in ("all_gather", "reduce_scatter", "all_reduce")
    ] == [9, 5, 1]
    assert recording.calls[-1].payload_bytes == 4 * (4 * 9 + 3)
