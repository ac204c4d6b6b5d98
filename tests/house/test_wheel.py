"""What is shipped: the package, each shelf once, its catalogues; nothing that would shadow a user's `models`."""

import os
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]

SHELVES = ("collectives", "models", "strategies", "clusters")


class Built(NamedTuple):
    wheel: Path
    sdist: Path

    def in_wheel(self) -> list[str]:
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.namelist()

    def in_sdist(self) -> list[str]:
        """Paths below the one folder that an sdist has."""
        with tarfile.open(self.sdist) as archive:
            return [name.partition("/")[2] for name in archive.getnames()]


@pytest.fixture(scope="module")
def built(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build both from the tree, as pip does: a wheel made from the sdist would hide what the tree's links do."""
    target = tmp_path_factory.mktemp("dist")
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--sdist",
        "--wheel",
        "--outdir",
        str(target),
        str(repository),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=target, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.mark.parametrize("shelf", SHELVES)
def test_each_shelf_is_shipped_exactly_once(built: Built, shelf: str):
    for names in (built.in_wheel(), built.in_sdist()):
        homes = {str(PurePosixPath(name).parent) for name in names if name.endswith(f"/{shelf}/__init__.py")}
        assert homes == {f"meshcost/{shelf}"}


def test_no_file_is_shipped_twice(built: Built):
    for names in (built.in_wheel(), built.in_sdist()):
        assert [name for name, times in Counter(names).items() if times > 1] == []


def test_the_wheel_holds_meshcost_and_nothing_beside_it(built: Built):
    tops = {name.partition("/")[0] for name in built.in_wheel()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"meshcost"}


def test_the_sdist_holds_no_tests_and_no_links(built: Built):
    tops = {name.partition("/")[0] for name in built.in_sdist()} - {""}
    package = {"meshcost", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO", ".gitignore"}
    assert tops == package


def test_every_module_and_every_catalogue_file_is_shipped(built: Built, repository: Path):
    there = {
        path.relative_to(repository).as_posix()
        for pattern in ("*.py", "*.yaml", "py.typed")
        for path in (repository / "meshcost").rglob(pattern)
    }
    assert "meshcost/py.typed" in there
    assert any(name.startswith("meshcost/models/catalogue/") for name in there)
    assert any(name.startswith("meshcost/clusters/catalogue/") for name in there)
    for names in (built.in_wheel(), built.in_sdist()):
        assert there - set(names) == set()


def test_the_wheel_alone_prints_a_bill(built: Built, repository: Path, tmp_path: Path):
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    where = subprocess.check_output(
        [sys.executable, "-c", "import meshcost; print(meshcost.__file__)"],
        env=environment,
        cwd=tmp_path,
        text=True,
    )
    assert Path(where.strip()).is_relative_to(tmp_path)
    job = repository / "examples" / "llama-3.1-70b.yaml"
    command = [sys.executable, "-m", "meshcost", "analyze", str(job)]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "all_reduce" in done.stdout or "all_gather" in done.stdout


FOREIGN = """
import sys


def test_plugin(meshcost_same):
    assert not {"torch", "sympy", "pydantic", "rich"} & set(sys.modules)
    import meshcost
    from meshcost.execute.recording import RecordedCall

    calls = (RecordedCall("all_reduce", (0, 1), 8, 8, "fp32", "backward"),)
    meshcost_same(meshcost.Recording(0, 2, calls))
"""


def test_pytest_of_another_project_has_the_plugin(built: Built, tmp_path: Path):
    with zipfile.ZipFile(built.wheel) as archive:
        archive.extractall(tmp_path / "installed")
    (tmp_path / "test_foreign.py").write_text(FOREIGN)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    for options, code in ([], 1), (["--meshcost-update"], 0), ([], 0):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:randomly",
            "-p",
            "no:hypothesispytest",
            *options,
        ]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout + done.stderr
