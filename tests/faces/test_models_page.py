"""`meshcost models`: the catalogue, and one model by group and by block."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from meshcost.models import catalogue, read_model
from meshcost.report.models import GROUPS, card, group_sums

Run = Callable[..., object]
KEYS = {
    "name", "family", "weights_total", "weights_embedding", "weights_head", "weights_per_layer", "weights_routed_experts",
    "weights_active", "tied",
}  # fmt: skip


def test_the_catalogue_lists_every_model(run: Run):
    done = run("models", columns=100)
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 100
    listed = [line.split()[0] for line in done.out.splitlines() if line.split()]
    assert set(catalogue()) <= set(listed)
    rows = json.loads(run("models", "--format", "json").out)
    assert [row["name"] for row in rows] == list(catalogue())


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_groups_and_layers_add_up(name: str):
    model = read_model(name)
    data = card(model)
    assert set(data) >= KEYS
    assert sum(data["groups"].values()) == data["weights_total"] == model.weights_total
    assert set(group_sums(model)) <= set(GROUPS)
    assert data["groups"].get("expert", 0) == data["weights_routed_experts"]
    assert data["groups"]["embedding"] == data["weights_embedding"]
    assert data["weights_head"] == (0 if model.tied else data["groups"].get("head", 0))
    assert len(data["weights_per_layer"]) == data["layers"]
    assert json.loads(json.dumps(data)) == data


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt2", "llama-3.1-405b"])
def test_one_model(run: Run, name: str):
    model = read_model(name)
    out = run("models", name, columns=80).out
    assert f"{model.weights_total:,}" in out
    assert max(map(len, out.splitlines())) <= 80
    data = json.loads(run("models", name, "--format", "json").out)
    assert data == json.loads(json.dumps(card(model)))
    for _, each in model.weights_per_layer_runs:
        assert f"{each:,}" in out
    assert ("tied" in out) == model.tied


def test_a_config_file_is_read_the_same(run: Run, tmp_path: Path):
    fields = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 100,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields))
    data = json.loads(run("models", path, "--format", "json").out)
    assert data["weights_total"] == read_model(fields).weights_total
    assert data["layers"] == 2
    assert run("models", tmp_path).code == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "model_type"),
        ("[1]", "mapping"),
        ('{"model_type": "lama"}', "llama"),
        ("\x00\xff", "not text in UTF-8"),
    ],
)
def test_a_wrong_config_is_a_sentence(run: Run, tmp_path: Path, content: str, said: str):
    path = tmp_path / "config.json"
    path.write_text(content, encoding="latin-1")
    done = run("models", path)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err
