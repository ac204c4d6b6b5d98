"""Where people start: the file that `init` writes, the schema for editors, and the names of the library."""

import json
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

import meshcost as mc
from meshcost.job import Job
from meshcost.report.starter import job_text
from meshcost.strategies import STRATEGIES, Scalars
from meshcost.strategies.setting import Batch, Precision

Run = Callable[..., object]
Jobs = dict[str, Path]
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


def test_what_init_writes_can_be_analyzed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    done = run("init")
    assert (done.code, done.err) == (0, "")
    assert "meshcost analyze job.yaml" in done.out
    assert run("analyze", "job.yaml").code == 0
    assert run("init").code == 2
    Path("job.yaml").write_text("mine")
    assert run("init", "job.yaml", "--force").code == 0
    assert "mine" not in Path("job.yaml").read_text()


def test_copies_with_nothing_left_to_shard_are_warned_of(run: Run, tmp_path: Path):
    """`size` counts the copies, too: who reads it as the ranks of one copy asks for shards of one."""
    job = tmp_path / "hsdp.yaml"
    data = "{{strategy: fsdp, size: {}, replicate: 4}}"
    text = f"model: gpt2\nparallel: {{{{data: {data}}}}}\nbatch: {{{{sequence: 8, global_batch: 8}}}}\n"
    job.write_text(text.format(4))
    done = run("analyze", job, "--format", "json")
    assert done.code == 0
    assert json.loads(done.out)["world_size"] == 4
    assert done.err.startswith(f"{job}: warning: parallel.data: size 4 counts all data ranks")
    assert "size: 8." in done.err
    job.write_text(text.format(8))
    assert run("analyze", job).err == ""


@pytest.mark.parametrize("command", ["analyze", "explain", "compare"])
def test_help_names_every_cluster(run: Run, command: str):
    done = run(command, "--help")
    assert done.code == 0
    said = done.out.partition("--cluster")[2]
    assert [name for name in mc.clusters.clusters() if name not in said] == []


def test_init_prints_to_a_pipe(run: Run):
    assert run("init", "-").out == job_text("job.yaml")


@pytest.mark.parametrize(
    "options", [Job, *STRATEGIES.values(), Batch, Precision, Scalars], ids=lambda x: x.__name__
)
def test_init_shows_every_option(options: type[BaseModel]):
    text = job_text("job.yaml")
    missing = [name for name in options.model_fields if f"{name}:" not in text]
    assert missing == []


def test_every_commented_option_is_legal_when_uncommented():
    """Read each commented line as YAML; what it sets has to be an option that exists."""
    text = job_text("job.yaml")
    names = {
        name for options in (Job, *STRATEGIES.values(), Batch, Precision) for name in options.model_fields
    }
    names |= {"order", "pad_vocabulary", *STRATEGIES}
    found = 0
    for line in text.splitlines():
        bare = line.strip()
        if (
            bare.startswith("# ")
            and ":" in bare.partition(" #")[0]
            and not bare.startswith(("# A job", "# Editors"))
        ):
            ((name, _),) = yaml.safe_load(bare.removeprefix("#").strip()).items()
            assert name in names, line
            found += 1
    assert found > 20


@pytest.fixture
def validator(run: Run) -> jsonschema.Draft202012Validator:
    schema = json.loads(run("schema").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_schema_accepts_every_example(validator: jsonschema.Draft202012Validator, path: Path):
    assert [error.message for error in validator.iter_errors(yaml.safe_load(path.read_text()))] == []


def test_the_schema_accepts_short_forms_and_refuses_mistakes(validator: jsonschema.Draft202012Validator):
    job = {"model": "gpt2", "batch": {"sequence": 8, "global_batch": 8}}
    for more in (
        {"parallel": {"data": 8, "tensor": 2}},
        {"cluster": "h100-dgx"},
        {"cluster": {"gpus_per_node": 4}},
    ):
        assert validator.is_valid(job | more)
    for wrong in (
        {"modle": 1},
        {"parallel": {"data": "8"}},
        {"parallel": {"data": 0}},
        {"parallel": {"data": {"x": 1}}},
    ):
        assert not validator.is_valid(job | wrong)
    assert not validator.is_valid({"model": "gpt2"})
    assert validator.is_valid(yaml.safe_load(job_text("job.yaml")))


def test_the_library_does_what_the_command_does(jobs: Jobs, run: Run):
    ledger = mc.analyze(mc.load(jobs["dense"]))
    assert isinstance(ledger, mc.Ledger)
    assert all(isinstance(event, mc.Event) for event in ledger)
    assert json.loads(run("analyze", jobs["dense"], "--format", "json").out) == json.loads(
        json.dumps(ledger.to_dict())
    )
    assert isinstance(next(iter(ledger.calls(0))), mc.Call)
    assert mc.models.catalogue()
    assert mc.collectives.ALGORITHMS
    assert mc.__version__
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        mc.analyse  # noqa: B018 - the access is what is tested


def test_a_path_can_be_analyzed_at_once(jobs: Jobs):
    assert mc.analyze(jobs["dense"]) == mc.analyze(str(jobs["dense"])) == mc.analyze(mc.load(jobs["dense"]))


def test_errors_are_one_family(jobs: Jobs):
    tree = [
        kind for kind in vars(mc.errors).values() if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert len(tree) > 6
    for kind in tree:
        assert issubclass(kind, mc.MeshcostError)
        assert getattr(mc, kind.__name__) is kind
        assert kind.__name__ in mc.__all__
    with pytest.raises(mc.MeshcostError):
        mc.load("no-such.yaml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{ nonsense", "line 1: not JSON: "),
        (b"[1, 2]", ""),
        (b"\xff\x00\xfe", "not text in UTF-8."),
        (b"[" * 100_000, "not JSON that can be read"),
        (b"9" * 5000, "not JSON that can be read"),
        (b'{"meshcost": 1}', "about: missing."),
        (None, "no such file."),
    ],
)
def test_a_broken_file_of_a_ledger_is_a_sentence_with_its_name(
    tmp_path: Path, ledgers: dict[str, mc.Ledger], content: bytes | None, said: str
):
    path = tmp_path / "bill.json"
    if content is not None:
        path.write_bytes(content)
    for read in (mc.Ledger.from_json, lambda path: mc.assert_same(ledgers["alone"], path)):
        with pytest.raises(mc.MeshcostError) as caught:
            read(path)
        assert all(problem.startswith(f"{path}: ") for problem in caught.value.problems)
        assert said in str(caught.value)
    with pytest.raises(mc.LedgerError, match="cannot be read"):
        mc.Ledger.from_json(tmp_path)


def test_a_ledger_comes_back_from_its_file(
    run: Run, jobs: Jobs, ledgers: dict[str, mc.Ledger], tmp_path: Path
):
    path = tmp_path / "bill.json"
    path.write_text(run("analyze", jobs["dense"], "--format", "json").out)
    back = mc.Ledger.from_json(path)
    assert back == ledgers["dense"]
    assert back.compare(ledgers["dense"]) == ()


TAMPERED = [
    (("events", 0, "algorithm"), "tree"),
    (("events", 0, "algorithm"), "no_such"),
    (("events", 0, "dtype"), "fp32"),
    (("events", 0, "dtype"), "bf17"),
    (("events", 0, "item_bytes"), 1),
    (("events", 0, "one_call", "rounds"), 2),
    (("events", 0, "one_call", "rail_bytes"), 1),
    (("totals", "busiest_rank"), 1),
    (("seconds", "total"), 1.0),
    (("seconds", "slowest_total"), 1.0),
    (("seconds", "slowest_stage"), 0),
    (("seconds", "events", 0), 1.0),
    (("seconds", "events"), []),
    (("seconds", "total"), "soon"),
]


@pytest.mark.parametrize(("place", "value"), TAMPERED)
def test_what_was_changed_in_a_saved_bill_is_noticed(
    run: Run, jobs: Jobs, place: tuple[str | int, ...], value: object
):
    data = json.loads(run("analyze", jobs["dense"], "--cluster", "h100-dgx", "--format", "json").out)
    assert mc.Ledger.from_dict(data).to_dict() == data
    *path, last = place
    reduce(getitem, path, data)[last] = value
    with pytest.raises(mc.LedgerError, match=str(place[0])):
        mc.Ledger.from_dict(data)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("values", "d"), "ring", "values.d: 'ring' is neither a whole number nor a fraction, as '3/4'."),
        (("values", "d"), "1/0", "values.d: '1/0' is neither"),
        (("values", "d"), "1e999999999", "values.d: '1e999999999' is neither"),
        (("values", "d"), None, "values.d: null is not legal: it has to be a whole number."),
        (("values",), {"x" * 3000: 1}, "values: 'xxx"),
        (("formula", "count"), "9" * 3000, "is stated, but its formulas give 999"),
        (("formula", "sent"), "9" * 3000, "sent and received give 999"),
        (("formula", "payload"), "9" * 3000 + "/7", "... / 2 is not a whole number."),
        (("formula", "payload"), "Max()", "not a formula: Max() is not arithmetic"),
        (("formula", "payload"), "log2_ceiling(1, 2)", "log2_ceiling(1, 2) is not arithmetic"),
        (("formula", "payload"), "h*quokka", "not a formula: quokka is not arithmetic"),
        (("formula", "payload"), "h/(d - d)", "not a formula: it divides by 0."),
        (("formula", "payload"), "power2_floor(0)", "power2_floor(0): there is no power of two"),
        (("formula", "payload"), "+".join(["h"] * 3000), "not a formula: it is nested too deeply."),
        (("formula", "payload"), "h d", "not a formula: invalid syntax."),
        (("count",), int("9" * 3000), "count: 999"),
        (("algorithm",), "x" * 3000, "cannot run as 'xxx"),
        (("x" * 3000,), 1, "xxx...: unknown field."),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_is_wrong_in_a_bill_is_said_shortly_and_plainly(
    ledgers: dict[str, mc.Ledger], place: tuple[str, ...], value: object, said: str
):
    data = ledgers["dense"].to_dict()
    *path, last = place
    reduce(getitem, path, data["events"][0])[last] = value
    with pytest.raises(mc.LedgerError) as caught:
        mc.Ledger.from_dict(data)
    (problem,) = caught.value.problems
    assert problem.startswith("events.0")
    assert said in problem
    assert len(problem) < 300


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("about", "micro_batches"), 7),
        (("about", "weights"), 1),
        (("about", "global_batch"), 8),
        (("about", "model"), "another"),
        (("about", "cluster"), "another"),
        (("about", "note"), "a field that was not there"),
        (("seconds", "cluster"), "another"),
        (("seconds", "caveat"), ""),
        (("events", 0, "why"), "for no reason"),
        (("digest",), "0" * 64),
    ],
    ids=str,
)
def test_what_no_number_hangs_on_is_noticed_too(
    run: Run, jobs: Jobs, tmp_path: Path, place: tuple[str | int, ...], value: object
):
    data = json.loads(run("analyze", jobs["dense"], "--cluster", "h100-dgx", "--format", "json").out)
    *path, last = place
    reduce(getitem, path, data)[last] = value
    (tmp_path / "bill.json").write_text(json.dumps(data))
    done = run("analyze", tmp_path / "bill.json")
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert "digest: it does not fit the rest" in done.err


def test_a_bill_without_its_digest_is_refused(ledgers: dict[str, mc.Ledger]):
    data = ledgers["dense"].to_dict()
    del data["digest"]
    with pytest.raises(mc.LedgerError, match="digest: missing"):
        mc.Ledger.from_dict(data)


def test_seconds_of_a_saved_bill_are_of_all_its_events(run: Run, jobs: Jobs):
    timed = run("analyze", jobs["dense"], "--cluster", "h100-dgx", "--format", "json").out
    ledger = mc.Ledger.from_dict(json.loads(timed))
    assert ledger.seconds["cluster"] == "h100-dgx"
    for part in (ledger.filter(op="all_gather"), ledger.at_stage(0), ledger + ledger.at_stage(0)):
        assert part.seconds == {}


def test_a_ledger_is_one_line_where_python_shows_it(ledgers: dict[str, mc.Ledger]):
    for ledger in ledgers.values():
        text = repr(ledger)
        assert len(text.splitlines()) == 1
        assert len(text) < 160
        assert f"{ledger.totals.sent_bytes:,} B in {ledger.totals.calls:,} calls" in text


@pytest.mark.parametrize(
    "update",
    [
        {"batch": {"sequence": 64, "global_batch": 8}},
        {"parallel": {"data": 4}},
        {"model": "qwen3-0.6b"},
        {"framework": "torch"},
        {"freeze": ["model.layers.0.*"]},
        {"cluster": {"gpus_per_node": 2}},
        {"algorithms": {"all_gather": "recursive_doubling"}},
    ],
)
def test_a_copied_job_has_its_own_bill(jobs: Jobs, update: dict):
    job = mc.load(jobs["dense"])
    before = mc.analyze(job)
    copied = job.model_copy(update=update)
    fields = {name: getattr(job, name) for name in job.model_fields_set}
    assert mc.analyze(copied) == mc.analyze(mc.Job(**fields | update)) != before
    assert mc.analyze(job) == mc.analyze(job.model_copy()) == before


def test_a_copied_job_is_checked(jobs: Jobs):
    with pytest.raises(mc.JobError, match="7 does not divide 4 attention heads"):
        mc.load(jobs["dense"]).model_copy(update={"parallel": {"tensor": 7}})


def test_frozen_weights_are_not_said_to_be_summed():
    base = {"model": "gpt2", "parallel": {"data": 2}, "batch": {"sequence": 8, "global_batch": 2}}
    adapted = mc.analyze(mc.Job(**base, lora={"rank": 8, "targets": ["c_attn"]})).filter(strategy="ddp")
    assert [event.why for event in adapted] == ["sum the gradients of all trainable weights"]
    assert [event.why for event in mc.analyze(mc.Job(**base)).filter(strategy="ddp")] == [
        "sum the gradients of all weights"
    ]


def test_options_of_torch_in_a_textbook_bill_are_warned_of(run: Run, tmp_path: Path):
    path = tmp_path / "job.yaml"
    text = (
        "model: gpt2\nparallel: {data: 2}\nbatch: {sequence: 8, global_batch: 2}\ntorch: {bucket_cap_mb: 5}\n"
    )
    path.write_text(text)
    assert "torch: its options change nothing here" in run("analyze", path).err
    assert run("analyze", path, "--framework", "torch").err == ""


def test_the_front_door_lists_public_names_only():
    names = [name for name in dir(mc) if not name.startswith("__")]
    assert set(names) <= {*mc.__all__, "clusters", "collectives", "errors", "models", "strategies", "testing"}


def test_no_schema_allows_more_ranks_than_are_computed():
    size = Job.model_json_schema()["$defs"]["DataParallel"]["anyOf"][1]["properties"]["size"]
    base = {"model": "gpt2", "batch": {"sequence": 8, "global_batch": 1}}
    with pytest.raises(mc.JobError, match=r"parallel\.data\.size"):
        mc.Job(**base, parallel={"data": size["maximum"] + 1})
    with pytest.raises(mc.JobError, match=r"batch\.global_batch"):
        mc.Job(**base, parallel={"data": size["maximum"]})


def test_a_filter_by_stage_says_how_to_get_one(ledgers: dict[str, mc.Ledger]):
    with pytest.raises(mc.LedgerError, match=r"at_stage\(0\)"):
        ledgers["dense"].filter(stage=0)
    with pytest.raises(mc.LedgerError, match=r"Did you mean phase\?"):
        ledgers["dense"].filter(phases="forward")


def test_a_data_frame_has_the_rows_of_the_csv(run: Run, jobs: Jobs, ledgers: dict[str, mc.Ledger]):
    pandas = pytest.importorskip("pandas")
    for name in ("dense", "uneven", "alone"):
        frame = ledgers[name].to_pandas()
        assert frame.to_csv(index=False) == run("analyze", jobs[name], "--format", "csv").out
        assert isinstance(frame, pandas.DataFrame)
