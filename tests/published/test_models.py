"""Models against what transformers builds: 64 real ones by their numbers, small ones weight by weight."""

import json
from pathlib import Path

import pytest

from meshcost import models

TRUTH = json.loads((Path(__file__).parent / "models.json").read_text())
NUMBERS = (
    "weights_total",
    "weights_active",
    "weights_embedding",
    "weights_head",
    "weights_position",
    "weights_non_embedding",
    "weights_routed_experts",
    "tied",
)


def variant_name(variant: dict) -> str:
    options = (f"{k}={v}" for k, v in variant["config"].items() if isinstance(v, bool))
    return " ".join([variant["config"]["model_type"], *options])


@pytest.mark.parametrize("name", TRUTH["models"])
def test_a_real_model_has_the_numbers_that_transformers_counts(name):
    truth = TRUTH["models"][name]
    model = models.read_model(truth["config"])
    assert {number: getattr(model, number) for number in NUMBERS} == {n: truth[n] for n in NUMBERS}
    assert model.weights_per_layer_runs == tuple(map(tuple, truth["weights_per_layer_runs"]))


@pytest.mark.parametrize("name", [n for n, m in TRUTH["models"].items() if m["published_total"]])
def test_a_real_model_has_as_many_weights_as_its_checkpoint(name):
    truth = TRUTH["models"][name]
    assert models.read_model(truth["config"]).weights_total == truth["published_total"]


@pytest.mark.parametrize("variant", TRUTH["variants"], ids=variant_name)
def test_weights_are_those_that_transformers_registers_in_order(variant):
    model = models.read_model(variant["config"])
    ours = [[weight.name, [model.number(size) for size in weight.shape]] for weight in model.weights()]
    assert ours == variant["weights"]


def test_every_family_is_held_against_transformers():
    held = {variant["config"]["model_type"] for variant in TRUTH["variants"]}
    assert held == set(models.families())


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("meta-llama/Llama-3.1-405B", 405_853_388_800),
        ("Mixtral-8x22B", 140_620_634_112),
    ],
)
def test_well_known_totals(name, weights):
    assert models.read_model(name).weights_total == weights
