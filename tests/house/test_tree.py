"""The tree: no cycles, links that are only links, everything public explained, nothing too long."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

FUNCTION_LINES = 45
FILE_LINES = 400
LINKS = ("collectives", "models", "strategies")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

# Imports by name (`import_module("...")`) escape the contracts, so they are counted here. The package's front door
# may load anything; beyond that a module may load only what stands in this table.
LATE = {
    "meshcost.ledger_json": {"meshcost.price"},  # what a file states is computed again
    # a ledger shows and stores itself, and asks what one rank pays
    "meshcost.ledger": {"meshcost.ledger_json", "meshcost.report", "meshcost.price", "meshcost.busiest"},
}

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "meshcost"
FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(path: Path, root: Path = ROOT) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Modules of `known` that this one imports, anywhere in its text, under TYPE_CHECKING too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in known or node.module in known:
                    yield whole if whole in known else node.module


def late_imports(text: str) -> set[str]:
    """Modules of meshcost that are named in calls of import_module or __import__."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    names = [
        call.args[0]
        for call in calls
        if call.args and re.search(r"import(_module|__)$", ast.unparse(call.func))
    ]
    return {
        name.value for name in names if isinstance(name, ast.Constant) and name.value.startswith("meshcost")
    }


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    known = set(sources)
    return {name: set(imported(ast.parse(text), known)) - {name} for name, text in sources.items()}


def cycle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def code_lines(text: str) -> set[int]:
    """Numbers of the lines that hold code: no blank lines, comments or docstrings."""
    skip = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skip:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def long_functions(text: str, limit: int) -> list[str]:
    lines = code_lines(text)
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, FUNCTION):
            # The body: a signature with one line for each option of a command is a table, not code.
            length = len(lines & set(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)))
            if length > limit:
                found.append(f"{node.name}: {length} code lines, at most {limit}")
    return found


def unexplained(tree: ast.Module) -> list[str]:
    """Public classes, functions and methods without a docstring, and the module itself."""
    found = [] if ast.get_docstring(tree) else ["the module"]

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if not isinstance(node, (*FUNCTION, ast.ClassDef)) or node.name.startswith("_"):
                continue
            marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
            if not ast.get_docstring(node) and not marks & {"overload", "override", "setter"}:
                found.append(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")

    visit(tree.body, "")
    return found


def test_there_is_something_to_look_at():
    assert {"meshcost", "meshcost.symbols", "meshcost.models"} <= {module_name(path) for path in FILES}


def test_no_import_cycles():
    found = cycle(import_graph({module_name(path): path.read_text() for path in FILES}))
    assert found == [], " -> ".join(found)


def test_a_cycle_would_be_found():
    sources = {"x": "from x.a import f", "x.a": "def f():\n    from x import b", "x.b": "import x.a"}
    assert set(cycle(import_graph(sources))) == {"x.a", "x.b"}


@pytest.mark.parametrize("path", [path for path in FILES if path != PACKAGE / "__init__.py"], ids=module_name)
def test_no_arrow_hides_in_a_string(path: Path):
    allowed = tuple(LATE.get(module_name(path), ()))
    assert {name for name in late_imports(path.read_text()) if not name.startswith(allowed)} == set()


def test_a_hidden_arrow_would_be_found():
    assert late_imports('import_module("meshcost.job").f(importlib.import_module("torch"))') == {
        "meshcost.job"
    }


@pytest.mark.parametrize("shelf", LINKS)
def test_the_links_at_the_root_point_to_the_shelves(shelf: str):
    link = ROOT / shelf
    assert link.is_symlink()
    assert link.readlink() == Path("meshcost") / shelf
    assert (link / "__init__.py").is_file()


def test_no_tool_sees_a_file_twice():
    command = [sys.executable, "-m", "ruff", "check", "--show-files"]
    shown = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    paths = [Path(line).relative_to(ROOT) for line in shown]
    assert Path("meshcost/models/__init__.py") in paths
    assert [path for path in paths if path.parts[0] in LINKS] == []


def test_the_links_cannot_be_imported_by_mistake():
    text = "import models\nfrom strategies import data\nimport collectives.ring\nfrom meshcost import strategies\n"
    command = [sys.executable, "-m", "ruff", "check", "--select=TID251", "--output-format=concise"]
    done = subprocess.run(
        [*command, "--stdin-filename=meshcost/x.py", "-"], cwd=ROOT, input=text, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert [int(line.split(":")[1]) for line in done.stdout.splitlines() if "TID251" in line] == [1, 2, 3]


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_everything_public_is_explained(path: Path):
    assert unexplained(ast.parse(path.read_text())) == []


def test_a_missing_explanation_would_be_found():
    text = "def f(): ...\nclass A:\n    'Said.'\n    def g(self): ...\n    def _h(self): ...\n"
    assert unexplained(ast.parse(text)) == ["the module", "f", "A.g"]


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_nothing_is_left_unfinished(path: Path):
    left = [
        f"line {n}: {line}"
        for n, line in enumerate(path.read_text().splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert left == []


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_files_and_functions_stay_short(path: Path):
    text = path.read_text()
    length = text.count("\n")
    assert length <= FILE_LINES, f"{module_name(path)}: {length} lines, at most {FILE_LINES}"
    assert long_functions(text, FUNCTION_LINES) == []


def test_a_long_function_would_be_found():
    text = "def f():\n    '''Said.\n\n    At length.'''\n    # and a comment\n    x = 1\n\n    return x\n"
    assert long_functions(text, 2) == []
    assert long_functions(text, 1) == ["f: 2 code lines, at most 1"]
