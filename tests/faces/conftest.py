"""What the faces share: small jobs, and pages of a fixed width."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import meshcost

DENSE = """\
model: {model_type: llama, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 4, num_attention_heads: 4,
        num_key_value_heads: 2, vocab_size: 256}
parallel:
  data: {strategy: fsdp, size: 2}
  tensor: {size: 2, sequence_parallel: true}
  pipeline: {size: 2}
batch: {sequence: 32, micro_batch: 1, global_batch: 4}
cluster: {name: little, gpus_per_node: 4}
"""
EXPERTS = """\
model: {model_type: mixtral, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 4,
        num_key_value_heads: 2, vocab_size: 100, num_local_experts: 4, num_experts_per_tok: 2}
parallel: {data: {strategy: zero1, size: 4}, expert: 2}
batch: {sequence: 16, global_batch: 8}
"""
UNEVEN = """\
model: {model_type: llama, hidden_size: 6, intermediate_size: 10, num_hidden_layers: 1, num_attention_heads: 2,
        vocab_size: 11}
parallel: {data: 5}
batch: {sequence: 4, global_batch: 5}
"""
ALONE = """\
model: gpt2
batch: {sequence: 16, global_batch: 1}
"""
JOBS = {"dense": DENSE, "experts": EXPERTS, "uneven": UNEVEN, "alone": ALONE}


@pytest.fixture
def jobs(tmp_path: Path) -> dict[str, Path]:
    """Files of small jobs, by name."""
    paths = {name: tmp_path / f"{name}.yaml" for name in JOBS}
    for name, path in paths.items():
        path.write_text(JOBS[name])
    return paths


@pytest.fixture(scope="session")
def ledgers() -> dict[str, meshcost.Ledger]:
    """Ledgers of the same jobs."""
    import yaml

    return {name: meshcost.analyze(meshcost.read_job(yaml.safe_load(text))) for name, text in JOBS.items()}


@pytest.fixture(scope="session")
def shown() -> Callable[..., str]:
    """Print on a page of fixed width without colour; a sign that the encoding lacks is an error."""

    def draw(renderable: object, width: int, encoding: str = "utf-8") -> str:
        raw = io.BytesIO()
        with io.TextIOWrapper(raw, encoding=encoding, newline="\n") as file:
            console = Console(file=file, width=width, no_color=True, force_terminal=False, _environ={})
            console.print(renderable, crop=False)
            file.flush()
            return "".join(f"{line.rstrip()}\n" for line in raw.getvalue().decode(encoding).splitlines())

    return draw
