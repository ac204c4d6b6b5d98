"""What holds for every model: catalogue, reading, splitting over tensor ranks, freezing, adapters."""

import json
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshcost import models
from meshcost.errors import ModelError
from meshcost.symbols import E, V, a, a_kv, f, f_e, f_s, r_lora

PUBLISHED = json.loads((Path(__file__).parents[1] / "published" / "models.json").read_text())
CONFIGS = [m["config"] for m in PUBLISHED["models"].values()]
SMALL = [v["config"] for v in PUBLISHED["variants"]]
SHELF = Path(models.__file__).parent / "catalogue"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 32,
}
SPLIT_BY_TENSOR = {a, a_kv, f, f_e, f_s, V}


def problems(spec, base=None) -> tuple[str, ...]:
    with pytest.raises(ModelError) as caught:
        models.read_model(spec, base)
    return caught.value.problems


def count(weights, model) -> int:
    return sum(math.prod(map(model.number, weight.shape)) for weight in weights)


# The catalogue.


@pytest.mark.parametrize("path", sorted(SHELF.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_catalogue_file_states_what_its_family_computes(path):
    entry = yaml.safe_load(path.read_text())
    model = models.read_model(path.stem)
    assert set(entry) == {"name", "source", "config", "weights", "weights_source"}
    assert entry["name"] == path.stem == model.name
    assert entry["weights"] == model.weights_total == count(model.weights(), model)
    assert entry["source"]
    assert entry["weights_source"]


def test_the_catalogue_is_large_and_every_family_is_in_it_or_tested_small():
    assert len(models.catalogue()) >= 45
    assert set(models.families()) == {config["model_type"] for config in SMALL}


def test_a_catalogue_file_holds_only_fields_that_count():
    for name in models.catalogue():
        config = yaml.safe_load((SHELF / f"{name}.yaml").read_text())["config"]
        assert models.read_model(config).weights_total == models.read_model(name).weights_total


def test_a_model_is_found_by_name_in_any_case_and_by_its_repository():
    by_name = models.read_model("llama-3.1-405b")
    assert models.read_model("LLaMA-3.1-405B") == by_name
    assert models.read_model("meta-llama/llama-3.1-405b") == by_name
    assert by_name.source == "meta-llama/Llama-3.1-405B"


def test_an_unknown_name_is_answered_with_the_nearest():
    (problem,) = problems("llama-3.1-71b")
    assert "'llama-3.1-71b'" in problem
    assert "llama-3.1-70b" in problem
    assert problem.count(",") == 2


# Reading.


def test_a_file_and_its_folder_are_read_relative_to_the_base(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(
        json.dumps(LLAMA | {"unknown": [1], "num_atention_heads": 3})
    )
    model = models.read_model("mine/config.json", tmp_path)
    assert model == models.read_model("mine/config.json", base=tmp_path)
    assert model.name == "mine"
    assert model.weights_total == models.read_model(LLAMA).weights_total
    assert models.read_model(Path("mine"), tmp_path).weights_total == model.weights_total


@given(st.permutations(list(LLAMA.items())))
def test_the_order_of_fields_does_not_matter(items):
    assert models.read_model(dict(items)) == models.read_model(LLAMA)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config["model_type"])
def test_null_means_absent(config):
    meaningful = {"q_lora_rank", "num_key_value_heads", "head_dim"}
    absent = {
        key: None for key in ("attention_bias", "mlp_bias", "n_inner", "mlp_only_layers") if key not in config
    }
    model = models.read_model(config | absent)
    assert model.weights_total == models.read_model(config).weights_total
    assert not absent.keys() & meaningful


@pytest.mark.parametrize("outer", ["gemma3", "llama4"])
def test_a_model_with_images_is_read_as_its_text_tower(outer):
    inner = next(c for c in CONFIGS if c["model_type"] == f"{outer}_text")
    text = {key: value for key, value in inner.items() if key not in ("model_type", "architectures")}
    model = models.read_model({"model_type": outer, "text_config": text, "vision_config": {}})
    assert model.weights_total == models.read_model(inner).weights_total
    assert "text tower" in model.source


def test_all_problems_are_told_at_once():
    wrong = LLAMA | {"hidden_size": True, "vocab_size": -1, "attention_bias": "yes", "num_hidden_layers": 2.0}
    del wrong["intermediate_size"]
    told = problems(wrong)
    for field in ("hidden_size", "vocab_size", "attention_bias", "num_hidden_layers", "intermediate_size"):
        assert sum(problem.startswith(f"{field}:") for problem in told) == 1
    assert len(told) == 5


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"hidden_size": 18}, ("hidden_size 18", "num_attention_heads 4")),
        ({"num_key_value_heads": 3}, ("num_attention_heads 4", "num_key_value_heads 3")),
        ({"num_hidden_layers": 0}, ("num_hidden_layers",)),
        ({"num_hidden_layers": 100_001}, ("num_hidden_layers", "100000")),
        ({"vocab_size": 10**13}, ("vocab_size",)),
        ({"vocab_size": 10**5000}, ("vocab_size",)),
        ({"num_key_value_head": 2}, ("num_key_value_head", "num_key_value_heads")),
        ({"model_type": "lama"}, ("model_type", "'lama'", "Did you mean llama?", "deepseek_v3")),
        ({"model_type": "mamba"}, ("'mamba' is not a known family. Known: ",)),
        ({"model_type": None}, ("model_type",)),
        ({"model_type": ["llama"]}, ("model_type",)),
        ({"vocab_size": float("nan")}, ("vocab_size", "nan")),
        (
            {"model_type": "mixtral", "num_experts_per_tok": 9},
            ("num_experts_per_tok 9", "num_local_experts 8"),
        ),
        ({"model_type": "mixtral", "num_experts": 4, "num_local_experts": 8}, ("num_experts 4", "agree")),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [7]}, ("mlp_only_layers", "7")),
        ({"model_type": "deepseek_v3", "moe_layer_freq": 2}, ("moe_layer_freq",)),
        ({"model_type": "gemma3"}, ("text_config",)),
        ({"model_type": "mpt", "n_layers": 2, "n_heads": 4, "d_model": 16, "no_bias": False}, ("no_bias",)),
        ({"model_type": "dbrx", "tie_word_embeddings": True}, ("tie_word_embeddings",)),
        ({"model_type": "qwen2"}, ("num_key_value_heads 32, the default of its family",)),
    ],
)
def test_a_wrong_configuration_is_named_field_by_field(change, fields):
    told = " ".join(problems(LLAMA | change))
    assert [field for field in fields if field not in told] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "3",
        '"llama"',
        "{",
        '{"model_type": "llama"}',
        "[" * 200_000,
        '{"a":' + "1" * 5000 + "}",
    ],
)
def test_a_file_that_is_no_configuration_is_refused_by_name(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    assert all("config.json" in problem for problem in problems("config.json", tmp_path))


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "large.json").write_text(json.dumps({"x": "y" * 2_000_001}))
    (tmp_path / "binary.json").write_bytes(b"\xff\x00")
    (tmp_path / "tag.yaml").write_text("a: !!int ''")
    (tmp_path / "code.yaml").write_text("a: !!python/object/apply:os.getcwd []")
    for spec in (
        "large.json",
        "binary.json",
        "tag.yaml",
        "code.yaml",
        "none.json",
        "\0.json",
        "x" * 5000 + ".json",
    ):
        assert problems(spec, tmp_path)
    for spec in ("", "\0", 3, None, ["llama"], "x" * 5000, "/"):
        assert problems(spec)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def model_or_error(spec) -> None:
    try:
        model = models.read_model(spec)
    except ModelError:
        return
    assert model.weights_total > 0
    assert model.layers == len(model.weights_per_layer)
    assert model.weights_active <= model.weights_total


@given(st.data(), st.sampled_from(SMALL + CONFIGS))
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_a_mutated_configuration_is_a_model_or_a_model_error(data, config):
    mutated = dict(config)
    for key in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        if key == "model_type":
            mutated[key] = data.draw(st.sampled_from(models.families()) | JUNK)
        elif data.draw(st.booleans()):
            mutated.pop(key, None)
        else:
            mutated[key] = data.draw(JUNK | st.integers(-2, 64))
    model_or_error(mutated)


@given(
    JUNK
    | st.dictionaries(st.text(), JUNK)
    | st.builds(lambda x: {"model_type": "llama4", "text_config": x}, JUNK)
)
def test_junk_is_a_model_error(junk):
    model_or_error(junk)


# Splitting over tensor ranks.


@pytest.mark.parametrize("config", SMALL, ids=lambda config: config["model_type"])
def test_tensor_parallelism_splits_heads_widths_and_vocabulary_and_nothing_else(config):
    model = models.read_model(config)
    for weight in [*model.before, *(w for kind in model.kinds for w in kind.weights), *model.after]:
        if weight.shard is None:
            assert weight.whole == 0
            widths = SPLIT_BY_TENSOR & set().union(*(size.free_symbols for size in weight.shape))
            # Whole weights have no split dim, except one key and value head that all query heads share.
            assert not widths or (weight.split_input and model.dims[a_kv] == 1)
        else:
            assert weight.shape[weight.shard].free_symbols & SPLIT_BY_TENSOR
            assert not weight.split_input
        assert weight.group != "expert" or E in set().union(*(size.free_symbols for size in weight.shape))


def test_multi_query_attention_keeps_its_one_key_and_value_head_whole():
    separate = models.read_model(LLAMA | {"num_key_value_heads": 1})
    by_name = {weight.name.split(".")[-2]: weight for weight in separate.kinds[0].weights}
    assert by_name["q_proj"].shard == 0
    for name in ("k_proj", "v_proj"):
        assert by_name[name].shard is None
        assert by_name[name].split_input
    falcon = models.read_model("falcon-7b")
    qkv = next(w for w in falcon.kinds[0].weights if "query_key_value" in w.name)
    assert falcon.number(qkv.whole) == 2 * 64
    assert falcon.number(qkv.shape[0] - qkv.whole) == 71 * 64


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("llama-3-8b", [("attention", 1), ("mlp", 1)]),
        ("gpt-j-6b", [("attention+mlp", 1)]),
        ("pythia-2.8b", [("attention+mlp", 2)]),
        ("deepseek-v3", [("attention", 2), ("mlp", 1)]),
        ("mixtral-8x7b", [("attention", 1), ("experts", 1)]),
    ],
)
def test_regions_list_each_activation_that_enters(name, inputs):
    regions = models.read_model(name).kinds[0].regions
    assert [(region.name, len(region.inputs)) for region in regions] == inputs


def test_norms_over_all_heads_are_counted_where_they_are():
    assert models.read_model("olmo-2-7b").kinds[0].regions[0].split_norms == 2
    assert models.read_model("qwen3-8b").kinds[0].regions[0].split_norms == 0


# Freezing and adapters.


@given(st.sampled_from(SMALL), st.sets(st.integers(0, 4), max_size=3))
def test_freezing_changes_what_is_trained_and_nothing_else(config, layers):
    model = models.read_model(config)
    chosen = [w.name for w in model.weights() if any(f".{layer}." in w.name for layer in layers)]
    frozen = models.freeze(model, [name.replace("[", "[[]") for name in chosen])
    before, after = list(model.weights()), list(frozen.weights())
    assert [(w.name, w.shape) for w in before] == [(w.name, w.shape) for w in after]
    assert [w.name for w in after if not w.trainable] == chosen
    assert frozen.weights_total == model.weights_total
    assert frozen.weights_trainable == count((w for w in after if w.trainable), model)
    assert len({kind.name for kind in frozen.kinds}) == len(frozen.kinds)


def test_a_pattern_that_matches_nothing_is_an_error_with_the_nearest_name():
    with pytest.raises(ModelError, match=r"'lm_heat\.\*' matches no weight.*lm_head\.weight"):
        models.freeze(models.read_model(LLAMA), ["lm_heat.*", "model.*"])


LINEARS = {"q_proj", "v_proj", "o_proj", "down_proj"}


@given(st.sets(st.sampled_from(sorted(LINEARS)), min_size=1), st.integers(1, 64))
def test_adapters_train_rank_times_in_plus_out(targets, rank):
    model = models.read_model(LLAMA)
    adapted = models.lora(model, rank, sorted(targets))
    linears = [w for w in model.weights() if w.name.split(".")[-2] in targets]
    expected = sum(rank * sum(map(model.number, weight.shape)) for weight in linears)
    assert adapted.weights_trainable == adapted.weights_total - model.weights_total == expected
    assert adapted.dims[r_lora] == rank
    assert [w.name for w in adapted.weights() if not w.trainable] == [w.name for w in model.weights()]


def test_adapters_are_split_as_their_linear_is():
    gpt2 = models.lora(models.read_model("gpt2"), 4, ["c_attn", "attn.c_proj"])
    names = [weight.name.removeprefix("transformer.h.{layer}.attn.") for weight in gpt2.kinds[0].weights]
    where = dict(zip(names, gpt2.kinds[0].weights, strict=True))
    assert names[names.index("c_attn.bias") :][:3] == [
        "c_attn.bias",
        "c_attn.lora_A.default.weight",
        "c_attn.lora_B.default.weight",
    ]
    column_a, column_b = (where[f"c_attn.lora_{x}.default.weight"] for x in "AB")
    row_a, row_b = (where[f"c_proj.lora_{x}.default.weight"] for x in "AB")
    assert (column_a.shard, column_a.split_input, column_b.shard, column_b.split_input) == (
        None,
        True,
        0,
        False,
    )
    assert (row_a.shard, row_a.split_input, row_b.shard, row_b.split_input) == (1, False, None, True)
    assert [gpt2.number(size) for size in column_b.shape] == [3 * 768, 4]


def test_an_adapter_needs_a_linear_and_a_rank():
    model = models.read_model("deepseek-v3")
    with pytest.raises(ModelError, match=r"'query'.*Linears: q_a_proj, q_b_proj, kv_a_proj_with_mqa"):
        models.lora(model, 8, ["query"])
    for rank in (0, -1, True, 2.0, "8", None):
        with pytest.raises(ModelError, match="rank"):
            models.lora(model, rank, ["o_proj"])
    with pytest.raises(ModelError, match="already"):
        models.lora(models.lora(model, 8, ["o_proj"]), 4, ["o_proj"])
