"""What trace refuses, before torch is loaded: where, what, why and what would be legal."""

import re
import subprocess
import sys

import pytest

from meshcost.execute.trace_rules import trace_problems
from meshcost.job import Job

DENSE = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
}
EXPERTS = {**DENSE, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    **DENSE,
    "model_type": "deepseek_v3",
    "q_lora_rank": 32,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 2,
}


def problems(model=DENSE, *, real=False, **more):
    batch = {"sequence": 32, "micro_batch": 1, "global_batch": 128}
    return list(trace_problems(Job(model=model, batch=batch, **more), real=real))


def test_what_can_be_traced_has_no_problem():
    assert problems(parallel={"data": 2, "tensor": 2}) == []


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (DENSE, {"parallel": {"data": {"strategy": "zero2", "size": 2}}}, "data.strategy: torch has no zero2. Choose"),
        (DENSE, {"parallel": {"pipeline": {"size": 2, "schedule": "zb_h1"}}}, "torch has no zb_h1. Choose"),
        (DENSE, {"parallel": {"context": {"size": 2, "method": "ulysses"}}}, "torch has no ulysses. Choose"),
        (EXPERTS, {"parallel": {"data": 2, "tensor": 2, "expert": 2}}, "size: 2 would split experts, .* Choose 1"),
        (LATENT, {"parallel": {"tensor": 2}}, "would split self_attn.q_a_proj.weight, .* Choose 1"),
        ("bert-large", {}, "model: trace has no PyTorch model of the family bert. Choose one of .*llama"),
        (DENSE, {"torch": {"comm_hook": "fp16_compress_hook"}}, "torch.comm_hook: .* Leave it out"),
        (DENSE, {"torch": {"static_graph": True}}, "torch.static_graph: .* Leave it out"),
        (DENSE, {"torch": {"buffer_bytes": 8}}, "torch.buffer_bytes: .* Leave it out"),
        (
            EXPERTS,
            {"parallel": {"data": 2, "expert": {"size": 2, "capacity_factor": 1.5}}},
            "expert.capacity_factor: .* Leave it out",
        ),
        (
            EXPERTS,
            {"parallel": {"data": {"size": 2, "strategy": "zero1"}, "expert": 2}},
            "data.strategy: zero1 broadcasts .* experts that are dealt out. Choose ddp or fsdp",
        ),
        (
            EXPERTS,
            {"parallel": {"data": 2, "expert": 2, "pipeline": 2, "order": ["pipeline", "tensor", "context", "data"]}},
            "parallel.order: .* Write pipeline last",
        ),
        (DENSE, {"parallel": {"data": 128}, "real": True}, "128 real ranks are more than 64"),
    ],
)  # fmt: skip
def test_what_cannot_be_traced_is_refused_in_a_sentence(model, more, said):
    (found,) = problems(model, **more)
    assert re.search(said, found), found


def test_a_refusal_names_the_file_and_does_not_wait_for_torch(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: mixtral-8x7b\nparallel: {data: 4, tensor: 2, expert: 4}\nbatch: {sequence: 4096, global_batch: 4}\n"
    )
    code = (
        "import sys\nfrom meshcost.execute.trace_check import TraceCheck\nfrom meshcost.errors import JobError\n"
        "try: TraceCheck(sys.argv[1]).ranks\nexcept JobError as error: print(error)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    said, loaded = done.stdout.splitlines()
    assert said.startswith(f"{path}: parallel.tensor.size: 2 would split experts")
    assert loaded == "False"
