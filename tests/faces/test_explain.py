"""`meshcost explain`: every number is the formula's, every symbol is named, and growth is what a doubled job costs."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from sympy import Integer, Rational

import meshcost as mc
from meshcost import symbols as sym
from meshcost.errors import MeshcostError
from meshcost.ledger import Ledger
from meshcost.report.bill import Bill
from meshcost.report.explain import claims, find

Run = Callable[..., object]
Jobs = dict[str, Path]
every_job = pytest.mark.parametrize("name", ["dense", "experts", "uneven"])

EXAMPLES = Path(__file__).parents[2] / "examples"
ROOMY = """\
model: {model_type: llama, hidden_size: 128, intermediate_size: 256, num_hidden_layers: 8, num_attention_heads: 16,
        num_key_value_heads: 16, vocab_size: 512}
parallel:
  data: {strategy: fsdp, size: 4, replicate: 2}
  tensor: {size: 2, sequence_parallel: true}
  context: 2
  pipeline: 2
batch: {sequence: 64, micro_batch: 1, global_batch: 32}
"""


@every_job
def test_each_event_is_found_by_number_and_by_name(ledgers: dict[str, Ledger], name: str):
    for line in Bill(ledgers[name]).lines:
        assert find(ledgers[name], str(line.number)).line == find(ledgers[name], line.name).line == line


def test_the_beginning_of_a_name_is_enough_if_no_other_shares_it(ledgers: dict[str, Ledger]):
    assert find(ledgers["dense"], "pipeline.send.f").line.name == "pipeline.send.forward"
    assert find(ledgers["dense"], "tensor.all_gather.forward").line.name == "tensor.all_gather.forward"


def test_an_event_is_found_by_what_it_is_for(ledgers: dict[str, Ledger]):
    assert find(ledgers["experts"], "return to each token what").line.name == "expert.all_to_all.forward.2"
    with pytest.raises(MeshcostError, match="'dispatch': 2 events are for something of that name: expert"):
        find(ledgers["experts"], "dispatch")


@pytest.mark.parametrize("example", ["expert", "deepseek-v3"])
def test_a_dispatch_is_named_before_its_combine_whichever_is_larger(example: str):
    ledger = mc.analyze(mc.load(EXAMPLES / f"{example}.yaml"))
    for phase in ("forward", "backward"):
        shown = [
            find(ledger, name).event
            for name in (f"expert.all_to_all.{phase}", f"expert.all_to_all.{phase}.2")
        ]
        assert [event.why.partition(":")[0] for event in shown] == ["dispatch", "combine"]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("tensor", "events begin so"),
        ("0", "Choose 1 to"),
        ("999", "Choose 1 to"),
        ("-1", "Choose 1 to"),
        ("tensor.allgather.forward", "Near: tensor.all_gather.forward"),
        ("", "events begin so"),
        ("Gradient", "events are for something of that name: "),
    ],
)
def test_what_is_not_found_says_what_is_near(ledgers: dict[str, Ledger], wanted: str, said: str):
    with pytest.raises(MeshcostError, match=said):
        find(ledgers["dense"], wanted)


@every_job
def test_formulas_give_the_bill(ledgers: dict[str, Ledger], name: str):
    for line in Bill(ledgers[name]).lines:
        shown = find(ledgers[name], line.name)
        payload, calls, one, every = shown.formulas()
        event = line.event
        assert (payload.value, calls.value) == (event.payload_bytes, event.calls)
        assert every.value == getattr(event.totals, f"{shown.moves}_bytes") == calls.value * one.value


@every_job
def test_what_is_put_in_computes_to_the_value(ledgers: dict[str, Ledger], name: str):
    for line in Bill(ledgers[name]).lines:
        for formula in find(ledgers[name], line.name).formulas():
            words = {"ceiling": lambda x: -(-x // 1), "floor": lambda x: x // 1, "Fraction": Fraction}
            text = "".join(f"Fraction({x})" if x.isdigit() else x for x in split(formula.substituted))
            assert eval(text, {"__builtins__": {}}, words) == formula.value


def split(text: str) -> list[str]:
    import re

    return re.findall(r"\d+|\D+", text)


@every_job
def test_every_symbol_is_there_and_definitions_hold(ledgers: dict[str, Ledger], name: str):
    for line in Bill(ledgers[name]).lines:
        shown = find(ledgers[name], line.name)
        values = {x.symbol: x.value for x in shown.symbols()}
        used = line.event.payload.free_symbols | line.event.count.free_symbols | shown.all_calls.free_symbols
        assert used <= set(values)
        for x in shown.symbols():
            if x.definition is not None:
                assert x.definition.subs(values) == x.value


@pytest.mark.parametrize("framework", ["textbook", "torch"])
@pytest.mark.parametrize(
    ("option", "number", "symbol"),
    [("capacity_factor", 1.25, "f_cap"), ("imbalance", 1.5, "f_imb"), ("imbalance", 1.0, None)],
)
def test_how_uneven_experts_are_has_a_name(
    jobs: Jobs, framework: str, option: str, number: float, symbol: str | None
):
    job = mc.read_job(
        yaml.safe_load(jobs["experts"].read_text())
        | {"framework": framework, "parallel": {"data": 4, "expert": {"size": 2, option: number}}}
    )
    for event in mc.analyze(job).filter(strategy="expert", dtype="bf16"):
        assert not event.payload.atoms(Rational) - event.payload.atoms(Integer)
        assert {str(x) for x in event.payload.free_symbols} & {"f_cap", "f_imb"} == (
            {symbol} if symbol else set()
        )
        if symbol:
            assert event.values[sym.ALPHABET[symbol]] == Fraction(str(number))


@every_job
def test_who_says_so_is_always_known(ledgers: dict[str, Ledger], name: str):
    for line in Bill(ledgers[name]).lines:
        shown = find(ledgers[name], line.name)
        assert "Source" in shown.source
        assert "Assumes" in shown.source
        assert shown.algorithm_source


AXES = {"tensor": {"tensor": 2}, "context": {"context": 2}, "pipeline": {"pipeline": 2}}


@pytest.mark.parametrize(
    ("quantity", "change"),
    [
        ("tensor", lambda job: job["parallel"]["tensor"].update(size=4)),
        ("context", lambda job: job["parallel"].update(context=4)),
        ("data", lambda job: job["parallel"]["data"].update(size=8)),
        ("replicate", lambda job: job["parallel"]["data"].update(size=8, replicate=4)),
        ("pipeline", lambda job: job["parallel"].update(pipeline=4)),
        ("global batch", lambda job: job["batch"].update(global_batch=64)),
        ("micro-batch", lambda job: job["batch"].update(micro_batch=2)),
        ("sequence", lambda job: job["batch"].update(sequence=128)),
    ],
)
def test_doubling_says_what_the_doubled_job_costs(quantity: str, change: Callable[[dict], None]):
    plain, doubled = yaml.safe_load(ROOMY), yaml.safe_load(ROOMY)
    change(doubled)
    job = mc.read_job(plain)
    before, after = mc.analyze(job), mc.analyze(mc.read_job(doubled))
    compared = 0
    for line in Bill(before).lines:
        same = [x for x in after if key(x) == key(line.event)]
        if len(same) != 1:
            continue  # other stages hold it now
        shown = find(before, line.name, job)
        growth = {x.quantity: x for x in shown.growth()}[quantity]
        sent = f"{shown.moves}_bytes"
        if growth.doubled is not None:
            compared += 1
            assert growth.doubled == Fraction(getattr(same[0].totals, sent), getattr(line.totals, sent))
    assert compared > 3


def key(event: mc.Event) -> tuple:
    ends = {"embedding", "head"}
    return (event.strategy, event.op, event.axes, event.phase, event.why, event.site.unit in ends)


def test_doubling_is_refused_where_the_job_would_be(ledgers: dict[str, Ledger], jobs: Jobs):
    shown = find(ledgers["dense"], "tensor.all_gather.forward", mc.load(jobs["dense"]))
    growth = {x.quantity: x for x in shown.growth()}
    assert growth["tensor"].doubled is None
    assert "4 does not divide 2 key and value heads" in growth["tensor"].why
    assert growth["tensor"].elasticity == Fraction(1, 1)  # (t - 1) / t at t = 2
    assert growth["sequence"].doubled == 2


def test_uneven_stages_are_not_said_to_be_independent_of_their_number():
    plain = yaml.safe_load(ROOMY)
    plain["parallel"]["pipeline"] = {"size": 2, "layers_per_stage": [3, 5]}
    job = mc.read_job(plain)
    growth = {x.quantity: x for x in find(mc.analyze(job), "tensor.all_gather.forward", job).growth()}
    assert growth["pipeline"].elasticity is None
    assert "dealt out" in growth["pipeline"].why


def test_rounds_of_a_tree_have_no_slope():
    plain = yaml.safe_load(ROOMY) | {"algorithms": {"all_reduce": "tree"}}
    job = mc.read_job(plain)
    ledger = mc.analyze(job)
    (line,) = [x for x in Bill(ledger).lines if x.event.phase == "optimizer"]
    growth = {x.quantity: x for x in find(ledger, line.name, job).growth()}
    assert growth["tensor"].elasticity is None or growth["tensor"].doubled is not None


@every_job
def test_the_page_has_everything(run: Run, jobs: Jobs, ledgers: dict[str, Ledger], name: str):
    for line in Bill(ledgers[name]).lines[:6]:
        for columns in (80, 120):
            done = run("explain", jobs[name], line.number, columns=columns)
            assert (done.code, done.err) == (0, "")
            assert line.name in done.out
            assert f"{line.event.payload_bytes:,} B" in done.out
            assert max(map(len, done.out.splitlines())) <= columns
            assert "NOT" not in done.out
            for heading in ("Formulas", "Symbols", "Step by step", "grows", "Who says so"):
                assert heading in done.out


def test_json_of_one_event_and_of_the_list(run: Run, jobs: Jobs):
    rows = json.loads(run("explain", jobs["dense"], "--format", "json").out)
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    data = json.loads(run("explain", jobs["dense"], rows[0]["event"], "--format", "json").out)
    assert data["formulas"]["sent"]["value"] == rows[0]["sent_bytes"]
    assert data["formulas"]["payload"]["value"] == rows[0]["payload_bytes"]
    assert data["symbols"]["m"]["definition"] == "B/(b*d*r)"
    assert {"data", "tensor", "pipeline", "global batch", "micro-batch", "sequence"} == set(data["growth"])


def test_the_list_names_every_event(run: Run, jobs: Jobs, ledgers: dict[str, Ledger]):
    out = run("explain", jobs["dense"], columns=80).out
    assert max(map(len, out.splitlines())) <= 80
    assert all(line.name in out for line in Bill(ledgers["dense"]).lines)
    assert run("explain", jobs["alone"]).code == 0


@pytest.mark.parametrize("framework", ["textbook", "torch"])
@pytest.mark.parametrize(
    ("strategy", "cited", "not_cited"),
    [
        (
            "ddp",
            {"textbook": "Li et al.", "torch": "DistributedDataParallel"},
            ("Zhao", "fully_shard", "Optimizer"),
        ),
        (
            "zero1",
            {"textbook": "Rajbhandari", "torch": "ZeroRedundancyOptimizer"},
            ("Zhao", "fully_shard", "Li et al."),
        ),
        ("fsdp", {"textbook": "Zhao", "torch": "fully_shard"}, ("Li et al.", "DistributedDataParallel")),
    ],
)
def test_who_says_so_is_who_says_it_of_that_strategy(
    framework: str, strategy: str, cited: dict[str, str], not_cited: tuple[str, ...]
):
    parallel, batch = {"data": {"strategy": strategy, "size": 4}}, {"sequence": 64, "global_batch": 4}
    job = mc.Job(model="gpt2", parallel=parallel, batch=batch, framework=framework)
    ledger = mc.analyze(job)
    for line in Bill(ledger).lines:
        if line.event.strategy == strategy:
            source = find(ledger, line.name).source["Source"]
            assert cited[framework] in source
            assert [name for name in not_cited if name in source] == []
            assert not source.startswith(strategy)


def test_claims_are_read_from_a_docstring():
    text = "T.\n\nSource   A 2020\n         b, c: B 2021\n         d: C 2022\n         e: D\n"
    assert claims(text, "b", {"b", "c", "d"}) == {"Source": "A 2020; B 2021; e: D"}
    assert claims("No fields here.") == {}
    assert claims("T.\n\nSource   A;\n         B 2020\n") == {"Source": "A; B 2020"}
