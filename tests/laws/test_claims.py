"""The docstring of a strategy claims which operations it calls: over all layouts, it calls those and no others."""

import re
from importlib import import_module

import pytest

import meshcost as mc
from meshcost.event import OPERATIONS

BATCH = {"sequence": 64, "global_batch": 32}
DENSE, EXPERTS = "llama-3-8b", "mixtral-8x7b"

LAYOUTS = {
    "data": [
        (DENSE, {"data": {"strategy": strategy, "size": 4}})
        for strategy in ("ddp", "zero1", "zero2", "zero3", "fsdp")
    ],
    "tensor": [(DENSE, {"tensor": {"size": 4, "sequence_parallel": split}}) for split in (False, True)],
    "pipeline": [
        ("gpt2", {"pipeline": {"size": 2, "schedule": schedule}}) for schedule in ("1f1b", "zbv", "dualpipe")
    ],
    "context": [
        (DENSE, {"context": {"size": 4, "method": method}}) for method in ("ring", "all_gather", "ulysses")
    ],
    "expert": [
        (
            EXPERTS,
            {"data": 4, "tensor": {"size": 2, "sequence_parallel": split}, "expert": {"size": 4, **more}},
        )
        for split, more in ((True, {}), (False, {"expert_tensor": 1}))
    ],
    "scalars": [(DENSE, {"data": {"strategy": "fsdp", "size": 4}})],
}
#: What torch has of it.
TORCH_LAYOUTS = {
    **{axis: LAYOUTS[axis] for axis in ("tensor", "scalars", "expert")},
    "context": [layout for layout in LAYOUTS["context"] if layout[1]["context"]["method"] != "ulysses"],
}
STRATEGIES = {"data": {"ddp", "zero1", "zero2", "zero3", "fsdp"}}


def claimed(axis: str, framework: str) -> set[str]:
    """Operations named between Calls and the next heading of a docstring."""
    text = import_module(f"meshcost.strategies.{axis}.{framework}").__doc__ or ""
    calls = re.search(r"^Calls(.*?)^(?:Sends|Assumes)", text, re.DOTALL | re.MULTILINE)
    assert calls is not None, f"{axis}/{framework}.py has no Calls in its docstring."
    return {op for op in OPERATIONS if re.search(rf"\b{op}\b", calls[1])}


@pytest.mark.parametrize(
    ("framework", "axis"),
    [*(("textbook", axis) for axis in LAYOUTS), *(("torch", axis) for axis in TORCH_LAYOUTS)],
)
def test_a_strategy_calls_what_its_docstring_claims(framework: str, axis: str) -> None:
    names = STRATEGIES.get(axis, {axis})
    found = {
        event.op
        for model, parallel in (LAYOUTS if framework == "textbook" else TORCH_LAYOUTS)[axis]
        for event in mc.analyze(mc.Job(model=model, framework=framework, parallel=parallel, batch=BATCH))
        if event.strategy in names
    }
    assert found == claimed(axis, framework)
