"""Fuzzing: whatever a person writes is a bill or a clear error, in bounded time and memory, never a traceback."""

import copy
import json
import resource
import time
import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from meshcost import plain_yaml, testing
from meshcost.errors import JobError, LedgerError, MeshcostError
from meshcost.job import Job, analyze, load, read_job
from meshcost.ledger import Ledger
from meshcost.ledger_json import digest

if TYPE_CHECKING:
    from pathlib import Path

HARD = settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    max_examples=settings().max_examples,
)
SECONDS, MEBIBYTES = 15, 200

TEXT = """\
model: {model_type: llama, hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4, intermediate_size: 128,
  vocab_size: 256}
framework: textbook
parallel:
  data: {strategy: fsdp, size: 4, replicate: 2}
  tensor: {size: 2, sequence_parallel: true}
  pipeline: {size: 2, schedule: interleaved_1f1b, chunks: 2}
  order: [tensor, context, data, pipeline]
batch: {sequence: 8192, micro_batch: 1, global_batch: 64}
precision: {weights: bf16, reduce: fp32}
cluster: {gpus_per_node: 4}
"""


def is_clear(error: MeshcostError) -> None:
    """Sentences that a person can read: some, none empty, none endless, no inner workings."""
    assert error.problems
    for problem in error.problems:
        assert problem.strip()
        assert len(problem) < 5000
        assert "Traceback" not in problem
        assert not any(
            word in problem.lower() for word in ("pydantic", "sympy", "<class", "literal", "exceeds")
        )


def bill(make: Callable[[], Job]) -> Ledger | None:
    """What comes out: a bill, or None with a clear error."""
    start = time.perf_counter()
    try:
        job = make()
        return analyze(job)
    except MeshcostError as error:
        is_clear(error)
        return None
    finally:
        assert time.perf_counter() - start < SECONDS


@HARD
@given(testing.job_documents())
@example({"self": 1})
@example({"cls": 1, "fields": 2, "_refuse": 3})
@example({"parallel": {"self": 1, "strategies": 2, "model_config": 3}})
@example({None: 1, 2: 3, True: 4, (1, 2): 5})
def test_any_document_is_a_bill_or_a_clear_error(data):
    bill(lambda: read_job(data))


@pytest.mark.parametrize("path", ["batch", "model", "lora", "freeze", "parallel", "precision", "cluster"])
def test_numbers_that_python_does_not_write_are_clear_errors(path):
    """Longer than ``sys.get_int_max_str_digits()``; a file has them in hexadecimal."""
    for value in (
        10**5000,
        [10**5000],
        {"size": 10**5000},
        {"sequence": 10**5000},
        {"tensor": {"size": 10**5000}},
    ):
        assert bill(lambda value=value: read_job({"model": "gpt2", path: value})) is None


@HARD
@given(testing.job_documents())
def test_any_document_written_as_yaml_too(data):
    try:
        text = yaml.safe_dump(data, allow_unicode=True)
    except (yaml.YAMLError, ValueError):
        return
    bill(lambda: read_job(plain_yaml.parse(text)))


SNIPPETS = [
    "&a",
    "*a",
    "<<: ",
    "!!python/object:os.system ",
    "!!int ''",
    "!!float",
    "!!timestamp x",
    "!!bool x",
    "!!set {a}",
    "? [a]\n: ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "'",
    '"',
    "\t",
    "---\n",
    "...\n",
    "%YAML 1.1\n",
    "|\n",
    ">\n",
    "\x00",
    "\ufeff",
    "\u2028",
    "é",
    "🦀",
    "0x",
    "0o7",
    "010",
    "0b1",
    "1e999",
    ".inf",
    ".nan",
    "1:59",
    "-",
    "99999999999999999999999",
    "true",
    "null",
    "~",
    "2001-99-99",
    "2001-01-01",
    "self: 1\n",
]


@HARD
@given(st.data())
def test_any_text_near_a_job_is_a_bill_or_a_clear_error(data):
    text = TEXT
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 12))
        text = text[:at] + data.draw(st.sampled_from(SNIPPETS) | st.text(max_size=5)) + text[at + cut :]
    bill(lambda: read_job(plain_yaml.parse(text)))


@given(st.binary(max_size=200), st.integers(0, len(TEXT)))
def test_any_bytes_in_a_file_are_a_bill_or_a_clear_error(tmp_path_factory, noise, at):
    path: Path = tmp_path_factory.getbasetemp() / "job.yaml"
    path.write_bytes(TEXT[:at].encode() + noise + TEXT[at:].encode())
    bill(lambda: load(path))


@given(st.text(max_size=200))
def test_any_text_is_data_or_a_job_error(text):
    try:
        plain_yaml.parse(text)
    except JobError as error:
        is_clear(error)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        "batch: &x {sequence: 8}\nother: *x",
        BOMB,
        "[" * 100_000,
        "{a: " * 5000 + "}" * 5000,
        "- " * 5000 + "x",
        "a: 1" + ":59" * 100_000,
        "a: " + "9" * 200_000,
        "a: 0x" + "f" * 200_000,
        "a: " + "x" * 900_000,
        "".join(f"k{i}: {i}\n" for i in range(20_000)),
        "? [a]\n: b",
        "{{a: b}: c}",
        "? {a: b}\n: c",
        "a: !!int ''",
        "a: !!float ''",
        "a: !!bool x",
        "a: !!timestamp x",
        "a: !!python/name:os.system x",
        "a: !!binary x",
        "a: !!set {a, b}",
        "a: {<<: {b: 1}}",
        "a: {<<: 3}",
        "a: 2001-99-99",
        "a: 2001-01-01 99:99:99",
        "a: \x00",
        "a: \ud800",
        "a: 1\na: 2",
        "x: {1: a, 1: b}",
        "x: {true: a, yes: b}",
        "---\na: 1\n---\nb: 2\n",
        "",
    ],
    ids=lambda text: repr(text[:24]),
)  # fmt: skip
def test_a_hostile_text_is_refused_quickly_or_harmless(text):
    assert bill(lambda: read_job(plain_yaml.parse(text))) is None
    tracemalloc.start()
    try:
        with pytest.raises(MeshcostError):
            read_job(plain_yaml.parse(text))
        assert tracemalloc.get_traced_memory()[1] < MEBIBYTES * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["a: &x 1", "a: &x 1\nb: *x"])
def test_anchors_and_aliases_are_refused_as_promised(text):
    with pytest.raises(JobError, match="anchors and aliases are not read"):
        plain_yaml.parse(text)


@pytest.mark.parametrize("text", ["[" * 41 + "]" * 41, "{a: " * 41 + "}" * 41])
def test_deep_nesting_is_refused_as_promised(text):
    with pytest.raises(JobError, match="nested more than 40 deep"):
        plain_yaml.parse(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": {"data": {"size": 2**20}}, "batch": {"sequence": 8, "global_batch": 2**20}},
        {"batch": {"sequence": 2**32, "micro_batch": 2**12, "global_batch": 2**32}},
        {
            "batch": {"sequence": 1, "global_batch": 2**20},
            "parallel": {"pipeline": {"size": 4, "schedule": "dualpipe"}},
        },
        {
            "batch": {"sequence": 1, "global_batch": 2**20},
            "parallel": {"pipeline": {"size": 4, "schedule": "interleaved_1f1b"}},
        },
        {
            "parallel": {"pipeline": {"size": 2**20, "layers_per_stage": [4, *[0] * (2**20 - 1)]}},
            "batch": {"sequence": 1, "global_batch": 1},
        },
        {
            "parallel": {
                "pipeline": {"size": 2**17, "layers_per_stage": [4, *[0] * (2**17 - 1)]},
                "tensor": {"size": 4},
                "data": {"size": 2},
            },
            "batch": {"sequence": 1, "global_batch": 2},
        },
        {
            "model": {
                "model_type": "llama",
                "hidden_size": 64,
                "num_hidden_layers": 100_000,
                "num_attention_heads": 4,
                "intermediate_size": 4,
                "vocab_size": 8,
            },
            "batch": {"sequence": 1, "global_batch": 1},
        },
    ],
)
def test_the_largest_legal_jobs_take_bounded_time_and_memory(changes):
    fields = {"model": yaml.safe_load(TEXT)["model"], **changes}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    try:
        analyze(read_job(fields))
    except MeshcostError as error:
        is_clear(error)
    assert time.perf_counter() - start < 2 * SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 5 * MEBIBYTES * 2**10


HUGE = st.integers(1, 10**18) | st.integers(1, 2**24) | st.integers(0, 59).map(lambda power: 2**power)


@HARD
@given(st.dictionaries(st.sampled_from(["data", "tensor", "context", "pipeline"]), HUGE), HUGE, HUGE)
def test_a_world_of_any_size_is_refused_before_its_divisors_are_looked_for(sizes, expert, split):
    parallel = {**sizes, "expert": {"size": expert, "expert_tensor": split}}
    batch = {"sequence": 2**32 - 5, "global_batch": 2**32 - 5}
    start = time.perf_counter()
    bill(lambda: read_job({"model": "mixtral-8x7b", "parallel": parallel, "batch": batch}))
    assert time.perf_counter() - start < 2


# -- ledgers as JSON -------------------------------------------------------------------------------------------------

SMALL = {
    **yaml.safe_load(TEXT),
    "parallel": {"data": {"strategy": "zero1", "size": 2}, "tensor": {"size": 2}, "pipeline": {"size": 2}},
    "batch": {"sequence": 8, "global_batch": 4},
}
LEDGER = json.loads(json.dumps(analyze(read_job(SMALL)).to_dict()))
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(
        [
            -1,
            0,
            1,
            2,
            2**40,
            2**70,
            10**400,
            "m",
            "T*h",
            "1/0",
            "h**h",
            "Max()",
            "log2_ceiling()",
            "1e999999999",
            "9" * 3000,
            [],
            {},
            [[1, 2]],
            [0, 99],
            "send",
            "dualpipe",
        ]
    ),
)


def places(value, here=()):
    yield here
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from places(item, (*here, key))


PLACES = [place for place in places(LEDGER) if place]


def at(value, place):
    for step in place:
        value = value[step]
    return value


def without_formulas(data):
    """The same as JSON, but for how formulas are written (another SymPy may sort them differently), and with what may be
    left out put in.
    """
    plain = json.loads(json.dumps(data))
    plain["mesh"].setdefault("expert", None)
    del plain["digest"]
    plain["events"] = [
        {"runs": [], "pairs": [], "shift": 0, "split": 0, **event, "formula": None}
        for event in plain["events"]
    ]
    return plain


def reads_as_written(data) -> None:
    """A ledger that is read says of itself exactly what the file said, and can be used; anything else is refused."""
    start = time.perf_counter()
    try:
        ledger = Ledger.from_dict(data)
    except LedgerError as error:
        is_clear(error)
        return
    finally:
        assert time.perf_counter() - start < SECONDS
    assert without_formulas(ledger.to_dict()) == without_formulas(data)
    assert ledger.by_stage
    if ledger.program.schedule.micro_batches <= 1000:
        for rank in (0, ledger.mesh.world_size - 1):
            for _ in zip(ledger.calls(rank), range(2000), strict=False):
                pass


@HARD
@given(st.sampled_from(PLACES), JUNK, st.sampled_from(["change", "leave out", "twice"]))
def test_a_spoilt_ledger_is_refused_whatever_its_digest_says(place, junk, how):
    """By its digest; and with one that fits, unless it says of itself exactly what the file says."""
    data = spoilt(place, junk, how)
    if json.dumps(data) != json.dumps(LEDGER):
        with pytest.raises(LedgerError):
            Ledger.from_dict(data)
    if place != ("digest",):
        data["digest"] = digest(data)
    reads_as_written(data)


def spoilt(place, junk, how):
    data = copy.deepcopy(LEDGER)
    holder = at(data, place[:-1])
    if how == "change":
        holder[place[-1]] = junk
    elif how == "leave out":
        del holder[place[-1]]
    elif isinstance(holder, list):
        holder.append(copy.deepcopy(holder[place[-1]]))
    return data


@pytest.mark.parametrize(
    "number",
    ["sent_bytes", "received_bytes", "intra_node_bytes", "inter_node_bytes", "count", "payload_bytes"],
)
def test_every_stated_number_is_computed_again(number):
    data = copy.deepcopy(LEDGER)
    data["events"][0][number] += 1
    data["digest"] = digest(data)
    with pytest.raises(LedgerError, match=r"events\.0"):
        Ledger.from_dict(data)


@given(
    st.recursive(
        JUNK,
        lambda x: (
            st.lists(x, max_size=3)
            | st.dictionaries(st.text(max_size=5) | st.sampled_from(sorted(LEDGER)), x, max_size=4)
        ),
    )
)
def test_anything_else_is_no_ledger(data):
    with pytest.raises(LedgerError):
        Ledger.from_dict(data)
