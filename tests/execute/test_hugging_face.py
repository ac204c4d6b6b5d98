"""Models that nobody here wrote: of Transformers, made from a config.json, and predicted from the same file.

They run three steps on the fake group with plain torch around them: fully_shard of each layer and of the root, or
DistributedDataParallel. Nothing is downloaded; weights are random.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshcost.execute.recording import SETUP, Recording
from meshcost.job import Job, analyze
from meshcost.mesh import Mesh
from meshcost.models import read_model
from meshcost.strategies.data.placed import placed_weights
from meshcost.strategies.data.use_order import in_use_order

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402 - needs torch
from torch import nn  # noqa: E402 - needs torch
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402 - needs torch
from torch.distributed.fsdp import fully_shard  # noqa: E402 - needs torch
from torch.nn.parallel import DistributedDataParallel  # noqa: E402 - needs torch
from transformers.distributed import DistributedConfig  # noqa: E402
from transformers.distributed.tensor_parallel import apply_tensor_parallelism  # noqa: E402

from meshcost.execute.record import record  # noqa: E402 - needs torch
from meshcost.execute.trace_data import reduce_whole  # noqa: E402 - needs torch
from meshcost.execute.trace_world import fake_world, quietly  # noqa: E402 - needs torch

# The import takes seconds: in one process of several.
pytestmark = pytest.mark.xdist_group("hugging_face")

FILES = Path(__file__).parent / "data" / "hugging_face"
RANK, WORLD, BATCH, TOKENS, STEPS = 1, 4, 2, 8, 3
SPLIT = 2

#: Small fields that most families share, and below them what each has of its own.
COMMON = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, **ROUTED,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "bloom": {"n_layer": 2, "n_head": 4},
    "cohere": {},
    "cohere, norms of heads": {"use_qk_norm": True},
    "deepseek_v2": LATENT,
    "deepseek_v3": {**LATENT, "n_group": 2, "topk_group": 1},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16},
    "glm4_moe": {
        "head_dim": 16, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, **ROUTED,
    },
    "gpt_neox": {},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2},
    "gptj": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 8},
    "llama4_text": {
        "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 80,
        "interleave_moe_layer_step": 2,
    },
    "mpt": {"d_model": 64, "n_layers": 2, "n_heads": 4},
    "olmo2": {},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "opt, norms after": {"ffn_dim": 96, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "phi": {"qk_layernorm": True, "num_key_value_heads": 4},
    "phi3": {},
    "qwen2": {},
    "qwen2_moe": {"num_experts": 4, "shared_expert_intermediate_size": 48, **ROUTED},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {"num_experts": 4, **ROUTED},
    "smollm3": {},
    "mistral": {},
}  # fmt: skip
OWN = ("llama", "mixtral", "gpt2")
#: Those with a tensor plan that is predicted.
PLANNED = [
    "llama",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "glm4_moe",
    "gemma",
    "gemma2",
    "gemma3_text",
    "cohere",
    "smollm3",
    "mistral",
]


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Path]:
    """Find or write the config.json of a family."""

    def find(name: str, **fields: Any) -> Path:
        if name in OWN:
            return FILES / f"{name}.json"
        path = tmp_path / "config.json"
        path.write_text(
            json.dumps({**COMMON, "model_type": name.partition(",")[0], **FAMILIES[name], **fields})
        )
        return path

    return find


def build(path: Path) -> nn.Module:
    """Let Transformers make the model that a file describes."""
    fields = json.loads(path.read_text())
    torch.manual_seed(0)
    with quietly():
        return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**fields))


def job(path: Path, strategy: str, **torch: Any) -> Job:
    return Job(
        model=str(path),
        framework="torch",
        parallel={"data": {"strategy": strategy, "size": WORLD}},
        batch={"sequence": TOKENS, "micro_batch": BATCH, "global_batch": BATCH * WORLD},
        precision={"weights": "fp32"},
        scalars={"loss": False},
        torch=torch,
    )


def layers(model: nn.Module) -> nn.ModuleList:
    """The longest list of modules is the blocks."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return max(lists, key=lambda found: sum(weight.numel() for weight in found.parameters()))


def loss(model: nn.Module) -> Any:
    tokens = torch.randint(3, 100, (BATCH, TOKENS))
    return model(input_ids=tokens, labels=tokens, use_cache=False).loss


def steps(model: nn.Module, mesh: Mesh | None = None, *, clips: bool = True) -> Recording:
    """Train as people do."""
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)
    with record(mesh or Mesh({"data": WORLD})) as recorder:
        for _ in range(STEPS):
            loss(model).backward()
            if clips:
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                if hasattr(norm, "full_tensor"):
                    norm.full_tensor()
            optimizer.step()
            optimizer.zero_grad()
        return recorder.recording


@contextmanager
def world() -> Iterator[None]:
    with fake_world(RANK, WORLD), quietly():
        yield


def hold(recording: Recording, asked: Job, equal_calls: Callable[..., None]) -> None:
    """Hold each step against its own prediction, the last one against the steady state."""
    fields = {name: getattr(asked, name) for name in asked.model_fields_set}
    for step in range(STEPS):
        options = asked.torch.model_copy(update={"step": step if step < STEPS - 1 else None})
        predicted = list(analyze(Job(**{**fields, "torch": options})).calls(RANK))
        observed = [call for call in recording if call.step == step and call.phase != SETUP]
        assert predicted
        equal_calls(predicted, observed, f"{asked.setting.model.family}, step {step}", rank=RANK)


@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma2", "gpt2", "opt"])
def test_fully_shard_of_each_layer(
    name: str, config: Callable[[str], Path], equal_calls: Callable[..., None]
):
    path = config(name)
    with world():
        model, mesh = build(path), init_device_mesh("cpu", (WORLD,), mesh_dim_names=("data",))
        for layer in layers(model):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        recording = steps(model)
    hold(recording, job(path, "fsdp"), equal_calls)


@pytest.mark.parametrize("name", PLANNED)
def test_tensor_parallel_by_the_plan_of_the_model(
    name: str, config: Callable[[str], Path], equal_calls: Callable[..., None]
):
    path = config(name, tie_word_embeddings=False)
    asked = Job(
        model=str(path),
        framework="torch",
        parallel={"tensor": {"size": SPLIT, "loss_parallel": False}},
        batch={"sequence": TOKENS, "micro_batch": BATCH, "global_batch": BATCH},
        precision={"weights": "bf16"},
        scalars={"loss": False, "gradient_norm": False},
        torch={"tp_plan": "auto"},
    )
    with fake_world(RANK, SPLIT), quietly():
        model = build(path).bfloat16()
        plan, _, _ = model._resolve_parallel_plans(DistributedConfig(tp_size=SPLIT))
        mesh = init_device_mesh("cpu", (SPLIT,), mesh_dim_names=("tensor",))
        apply_tensor_parallelism(model, mesh, plan)
        recording = steps(model, Mesh({"tensor": SPLIT}), clips=False)
    hold(recording, asked, equal_calls)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_oss", "qwen2_moe"])
def test_distributed_data_parallel(
    name: str, config: Callable[[str], Path], equal_calls: Callable[..., None]
):
    path = config(name)
    # GPT-2 is large enough for two buckets of the usual size.
    cap = None if name == "gpt2" else 0.05
    with world():
        model = build(path)
        buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
        wrapped = DistributedDataParallel(model, bucket_cap_mb=cap)
        wrapped.register_comm_hook(dist.group.WORLD, reduce_whole)
        recording = steps(wrapped)
    hold(recording, job(path, "ddp", bucket_cap_mb=cap, buffer_bytes=buffers), equal_calls)


@pytest.mark.parametrize("name", [*OWN, *FAMILIES])
def test_weights_and_the_order_in_which_their_gradients_arrive(name: str, config: Callable[[str], Path]):
    """Buckets of DistributedDataParallel are filled in this order, group by group of one size."""
    path = config(name)
    model, arrived = build(path), []
    for label, weight in model.named_parameters():
        weight.register_post_accumulate_grad_hook(lambda _, label=label: arrived.append(label))
    loss(model).backward()
    described = read_model(path)
    shapes = {weight.name: tuple(map(described.number, weight.shape)) for weight in described.weights()}
    assert [*shapes.items()] == [(label, tuple(weight.shape)) for label, weight in model.named_parameters()]
    asked = job(path, "ddp")
    used = in_use_order(placed_weights(asked.setting, asked.program.units, 0), described)
    assert arrived == [item.name for item in used][::-1]
