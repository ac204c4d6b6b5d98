"""Tests that start many processes, or need namespaces, run when they are asked for: MESHCOST_LONG=1 pytest tests/execute."""

import os

_LONG = ["counters", "hosts", "record", "speeds", "step", "trace_fake", "trace_models", "trace_real"]
collect_ignore = [] if os.environ.get("MESHCOST_LONG") else [f"test_{name}.py" for name in _LONG]
