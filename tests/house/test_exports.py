"""The front door: what `import meshcost` offers, and what it does not make people wait for."""

import subprocess
import sys

import meshcost

HEAVY = {"torch", "typer", "rich", "sympy", "pandas"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


def kind_then_name(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then functions, as ruff sorts `__all__`."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_the_public_names_are_there_once_and_in_order():
    assert meshcost.__all__
    assert list(meshcost.__all__) == sorted(set(meshcost.__all__), key=kind_then_name)


def test_every_public_name_resolves_and_is_listed_by_dir():
    missing = [name for name in meshcost.__all__ if getattr(meshcost, name, None) is None]
    assert missing == []
    assert set(meshcost.__all__) <= set(dir(meshcost))


def test_import_is_light():
    done = run("-c", "import sys, meshcost; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    assert HEAVY & set(done.stdout.split()) == set()


def test_help_comes_without_sympy_or_torch():
    done = run("-X", "importtime", "-m", "meshcost", "--help")
    assert done.returncode == 0, done.stderr
    assert "analyze" in done.stdout
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "meshcost" in imported
    assert {"sympy", "torch", "pandas"} & imported == set()


def test_a_mistake_is_one_sentence_and_exit_code_2():
    done = run("-m", "meshcost", "analyze", "no-such-job.yaml")
    assert done.returncode == 2
    assert "no-such-job.yaml" in done.stderr
    assert "Traceback" not in done.stderr
