"""Whatever a person does wrong: exit 2, nothing on standard output, a sentence for each problem, no traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., object]
Jobs = dict[str, Path]
BATCH = "batch: {sequence: 64, global_batch: 8}\n"

#: Text of a job file, and for each problem what its sentence has to hold.
FILES = {
    "empty": ("", ["empty", "a job is a mapping"]),
    "only a comment": ("# nothing yet\n", ["empty"]),
    "a list": ("- model: gpt2\n", ["a job is a mapping"]),
    "not yaml": (
        "model: [gpt2\n",
        [
            "line 2",
        ],
    ),
    "twice": ("model: gpt2\nmodel: gpt2\n" + BATCH, ["is written twice"]),
    "nothing needed": (
        "framework: textbook\n",
        ["model: missing", "batch: missing", "batch: {sequence: 8192"],
    ),
    "unknown field": ("modell: gpt2\n" + BATCH, ["model: missing", "Did you mean model?"]),
    "unknown option": (
        "model: gpt2\nparallel: {data: {sise: 2}}\n" + BATCH,
        [
            "parallel.data.sise",
        ],
    ),
    "unknown axis": ("model: gpt2\nparallel: {tensr: 2}\n" + BATCH, ["parallel.tensr"]),
    "unknown model": ("model: lama-3-8b\n" + BATCH, ["'lama-3-8b'", "Nearest: llama-3-8b"]),
    "unknown family": ("model: lama\n" + BATCH, ["Nearest: llama-"]),
    "nothing like it": ("model: quokka\n" + BATCH, ["'quokka' is not in the catalogue. meshcost models"]),
    "unknown cluster": ("model: gpt2\ncluster: h100\n" + BATCH, ["h100-dgx"]),
    "unknown strategy": ("model: gpt2\nparallel: {data: {strategy: zero4}}\n" + BATCH, ["zero3"]),
    "unknown operation": (
        "model: gpt2\nalgorithms: {allreduce: ring}\n" + BATCH,
        ["algorithms.allreduce: 'allreduce' is not known", "Did you mean all_reduce?"],
    ),
    "no model": ("model:\n" + BATCH, [": model: null is no model. Write a name"]),
    "no family": ("model: {}\n" + BATCH, ["model_type: missing. Write one of bert,"]),
    "a field of elsewhere": (
        "model: gpt2\norder: [data, tensor]\n" + BATCH,
        ["order: unknown field. Did you mean parallel.order?"],
    ),
    "heads of another method": (
        "model: gpt2\nparallel: {context: {size: 2, method: ring, replicate_kv_heads: true}}\n" + BATCH,
        ["parallel.context.replicate_kv_heads: ring keeps all heads", "method: ulysses"],
    ),
    "experts of a dense model": (
        "model: gpt2\nparallel: {expert: {imbalance: 1.5}}\n" + BATCH,
        ["parallel.expert: gpt2 has no routed experts. Leave it out."],
    ),
    "kept and given back": (
        "model: gpt2\nparallel: {data: {strategy: fsdp, size: 2, gather: once, reshard_after_forward: true}}\n"
        + BATCH,
        ["parallel.data.reshard_after_forward: gather: once keeps weights"],
    ),
    "a path without a file": (
        "model: ../../no/such\n" + BATCH,
        ["model: ../../no/such: no such file."],
    ),
    "not the kind that is meant": (
        "model: gpt2\nparallel: [8, 2]\nprecision: bf16\nfreeze: x\ncluster: 8\nbatch: 64\n",
        [
            "parallel: [8, 2] is not a mapping of fields. Write it as parallel: {data: 8, tensor: 2}.",
            "Write it as precision: {weights: bf16",
            "freeze: 'x' is not legal: it has to be a list. Write it as freeze: [",
            "Write it as cluster: h100-dgx, or as cluster: {gpus_per_node: 8}.",
            "batch: 64 is not a mapping of fields. Write it as batch: {sequence: 8192",
        ],
    ),
    "a strategy alone": (
        "model: gpt2\nparallel: {data: fsdp, context: ring}\n" + BATCH,
        ["as {strategy: fsdp, size: 2}", "as {method: ring, size: 2}"],
    ),
    "a cluster that is not there": (
        "model: gpt2\ncluster: none.yaml\n" + BATCH,
        ["none.yaml: no such file. meshcost verify --save writes one, or choose a100-dgx"],
    ),
    "unknown algorithm": ("model: gpt2\nalgorithms: {all_reduce: rong}\n" + BATCH, ["ring"]),
    "text for a number": ("model: gpt2\nparallel: {data: two}\n" + BATCH, ["parallel.data"]),
    "yes for a number": ("model: gpt2\nparallel: {data: yes}\n" + BATCH, ["parallel.data: true", "as 2"]),
    "a number in quotes": ("model: gpt2\nparallel: {data: '2'}\n" + BATCH, ["parallel.data: '2'", "as 2"]),
    "a number with a point": ("model: gpt2\nparallel: {data: 2.0}\n" + BATCH, ["parallel.data: 2.0", "as 2"]),
    "zero": ("model: gpt2\nparallel: {data: 0}\n" + BATCH, ["parallel.data.size"]),
    "half": ("model: gpt2\nparallel: {data: 1.5}\n" + BATCH, ["parallel.data"]),
    "octal digits": (
        "model: gpt2\nbatch:\n  {sequence: 010, global_batch: 8}\n",
        ["line 3: 010 is 8 in YAML; write a number in decimal digits, or '010' if it is text."],
    ),
    "sixties": ("model: gpt2\nbatch: {sequence: 1:30}\n", ["line 2: 1:30 is 90 in YAML; write"]),
    "sixties with a point": ("model: gpt2\nbatch: {sequence: 1:30.5}\n", ["1:30.5 is 90.5 in YAML"]),
    "binary digits": ("model: gpt2\nbatch: {sequence: -0b11}\n", ["-0b11 is -3 in YAML"]),
    "hexadecimal digits": ("model: gpt2\nbatch: {sequence: 0x1_0}\n", ["0x1_0 is 16 in YAML"]),
    "no digits": ("model: gpt2\nbatch: {sequence: 0x_}\n", ["line 2: 0x_ is no number; write"]),
    "no octal digit": (
        "model: gpt2\nbatch: {sequence: 08, global_batch: 8}\n",
        ["batch.sequence: '08' is not legal"],
    ),
    "names that are values elsewhere": (
        "model: gpt2\non: 1\n~: 2\n010: 3\nparallel: {no: 1}\n" + BATCH,
        [
            ": on: unknown field.",
            ": ~: unknown field.",
            ": 010: unknown field.",
            ": parallel.no: unknown field.",
        ],
    ),
    "another merged in": (
        "model: gpt2\nbatch: {<<: {sequence: 8}, global_batch: 8}\n",
        ["batch.<<: unknown field"],
    ),
    "a tag": (
        "model: !!python/object/apply:os.system [ls]\n" + BATCH,
        ["line 1: tags (!!python/object/apply:os.system) are not read; leave it out."],
    ),
    "a tag of its own": ("model: !mine x\n" + BATCH, ["tags (!mine) are not read"]),
    "a name without end": (f"model: gpt2\n{'x' * 900}: 1\n" + BATCH, [f"{'x' * 57}...: unknown field."]),
    "anchors": ("model: &x gpt2\n" + BATCH, ["anchors"]),
    "three reasons": (
        "model: llama-3-8b\nparallel: {tensor: 3, pipeline: 5, data: 3}\n" + BATCH,
        ["3 does not divide 32 attention heads", "32 blocks", "batch.global_batch"],
    ),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", ["analyze", "explain", "calls"])
def test_a_wrong_file_is_refused_with_every_reason(run: Run, tmp_path: Path, command: str, name: str):
    text, needles = FILES[name]
    path = tmp_path / "job.yaml"
    path.write_text(text)
    done = run(command, path, *(["--rank", 0] if command == "calls" else []))
    assert (done.code, done.out) == (2, "")
    assert_sentences(done.err)
    assert all(line.startswith(f"{path}: ") for line in done.err.splitlines())
    for needle in needles:
        assert needle in done.err


def assert_sentences(text: str):
    assert text.endswith("\n")
    assert "Traceback" not in text
    for line in text.splitlines():
        assert line.rstrip().endswith((".", "?")), line
        assert len(line) < 1000


def test_every_command_line_mistake(run: Run, jobs: Jobs, tmp_path: Path):
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "deep.yaml").write_text("[" * 900_000)
    (tmp_path / "anchors.yaml").write_text("model_type: &a llama\n")
    (tmp_path / "broken.json").write_text("[")
    dense = jobs["dense"]
    for arguments, needle in [
        (["analyze", tmp_path / "none.yaml"], "no such file"),
        (["analyze", tmp_path], "cannot be read"),
        (["analyze", dense, "--cluster", "h100"], "meshcost: --cluster: 'h100' is not in the catalogue."),
        (["analyze", dense, "--cluster", "none.yaml"], "meshcost: --cluster: none.yaml: no such file."),
        (["analyze", tmp_path / "binary.yaml"], "UTF-8"),
        (["analyze", f"{tmp_path}/a\nb\x1b[31m.yaml"], "\\n"),
        (["analyze", dense, "--stage", 2], "choose 0 to 1"),
        (["analyze", dense, "--stage", -1], "choose 0 to 1"),
        (["analyze", dense, "--rank", 8], "choose 0 to 7"),
        (["analyze", dense, "--rank", 0, "--stage", 1], "stage 0"),
        (["calls", dense, "--rank", 8], "choose 0 to 7"),
        (["calls", dense, "--rank", 8, "--format", "json"], "choose 0 to 7"),
        (["calls", dense, "--rank", -1, "--format", "jsonl"], "choose 0 to 7"),
        (["explain", dense, 99], "Choose 1 to"),
        (["explain", dense, "tensor.all_gahter"], "Near"),
        (["collectives", "all_redcue"], "all_reduce"),
        (["collectives", "all_reduce", "--ranks", 1], "2 to 16"),
        (["models", "lama-3-8b"], "llama-3-8b"),
        (["models", tmp_path / "none.json"], "no such file"),
        (["models", tmp_path / "deep.yaml"], "deep.yaml: line 1: "),
        (["models", tmp_path / "anchors.yaml"], "anchors"),
        (["models", tmp_path / "broken.json"], "broken.json: line 1: not JSON: "),
        (["init", tmp_path / "no" / "job.yaml"], "cannot be written"),
        (["init", dense], "--force"),
    ]:
        done = run(*arguments)
        assert (done.code, done.out) == (2, ""), arguments
        assert needle in done.err, arguments
        assert len(done.err.splitlines()) == 1, arguments
        assert done.err.isprintable() or done.err[:-1].isprintable(), arguments
        assert_sentences(done.err)


@pytest.mark.parametrize(
    "arguments",
    [
        ["anlyze"],
        ["analyze"],
        ["analyze", "x", "--by", "colour"],
        ["analyze", "x", "--format", "xml"],
        ["analyze", "x", "--framework", "tourch"],
        ["compare", "x", "--frameworks", "textbook,tourch"],
        ["analyze", "x", "--stage", "two"],
        ["analyze", "x", "--wide"],
        ["calls", "x"],
        ["calls", "x", "--rank", "0", "--limit", "-1"],
        ["init", "a", "b"],
    ],
)
def test_what_typer_refuses_is_a_usage_error(run: Run, arguments: list[str]):
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Usage:" in done.err
    assert "Traceback" not in done.err


def test_a_choice_is_refused_in_plain_words_with_the_nearest(run: Run, jobs: Jobs):
    for command, name, wrong, said, near in (
        ("analyze", "--by", "strat", "'strat' is not known. Choose event, strategy,", "strategy"),
        ("analyze", "--framework", "tourch", "'tourch' is not known. Choose textbook or torch.", "torch"),
        ("compare", "--frameworks", "tourch", "'tourch' is not known. Choose textbook or torch.", "torch"),
    ):
        done = run(command, jobs["dense"], name, wrong)
        assert (done.code, done.out) == (2, "")
        assert f"'{name}': {said}" in done.err
        assert f"Did you mean {near}?" in done.err
        assert "Value error" not in done.err


def test_a_real_bug_is_not_hidden(run: Run, jobs: Jobs, monkeypatch: pytest.MonkeyPatch):
    import meshcost.job

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(meshcost.job, "analyze", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        run("analyze", jobs["dense"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("init", ""), "a file has to have a name"),
        (("analyze", "alone", "--stage", 9), "stage 9 does not exist: there is only stage 0."),
        (("analyze", "alone", "--rank", 9), "rank 9 does not exist: there is only rank 0."),
        (("analyze", "dense", "--stage", 9), "stage 9 does not exist: choose 0 to 1."),
        (
            ("compare", "dense", "alone", "--stage", 1),
            "meshcost: alone: stage 1 does not exist: there is only stage 0.",
        ),
        (("models", "../no/such"), "../no/such: no such file."),
    ],
)
def test_what_cannot_be_is_said_with_its_name(run: Run, jobs: Jobs, arguments: tuple[object, ...], said: str):
    done = run(*(jobs.get(str(argument), argument) for argument in arguments))
    assert (done.code, done.out) == (2, "")
    assert_sentences(done.err)
    assert said in done.err
