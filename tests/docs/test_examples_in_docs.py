"""Every example in the documents is run: commands give the output that is printed, Python blocks hold.

UPDATE_DOCS=1 writes the real output into the documents instead of comparing; read the difference before you commit it.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CONSOLE = re.compile(r"```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```", re.DOTALL)
PYTHON = re.compile(r"```python\n(?P<code>.*?)```", re.DOTALL)


def run(command: str) -> str:
    """Run a command as a person with a terminal of 100 columns without colour sees it."""
    name, *arguments = shlex.split(command)
    assert name == "meshcost"
    done = subprocess.run(
        [sys.executable, "-m", "meshcost", *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return "".join(line.rstrip() + "\n" for line in (done.stdout + done.stderr).splitlines())


def blocks(pattern: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    """Find the blocks of one kind in all documents."""
    return [
        (path, match) for path in DOCUMENTS for match in pattern.finditer(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(
    ("path", "match"), [pytest.param(p, m, id=f"{p.name}: {m['command']}") for p, m in blocks(CONSOLE)]
)
def test_command_prints_what_the_document_says(path: Path, match: re.Match[str]) -> None:
    output = run(match["command"])
    if os.environ.get("UPDATE_DOCS"):
        text = path.read_text(encoding="utf-8")
        path.write_text(
            text.replace(match[0], f"```console\n$ {match['command']}\n{output}```"), encoding="utf-8"
        )
    else:
        assert output == match["output"]


@pytest.mark.parametrize(
    ("path", "match"), [pytest.param(p, m, id=f"{p.name}:{m.start()}") for p, m in blocks(PYTHON)]
)
def test_python_in_the_document_runs(
    path: Path, match: re.Match[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(match["code"], str(path), "exec"), {})


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_example_analyzes(path: Path) -> None:
    assert "sends" in run(f"meshcost analyze {path.relative_to(ROOT)}")
