"""Files that people name: a pipe or a device is read as far as such a file may go, and no further."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshcost import document

Run = Callable[..., object]
Jobs = dict[str, Path]
MIB = 2**20
pytestmark = pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs names of open pipes")


@contextmanager
def pipe(link: Path, piece: bytes, times: int) -> Iterator[list[int]]:
    """Name a pipe that somebody writes to; yields how much went through so far."""
    reading, writing = os.pipe()
    link.symlink_to(f"/dev/fd/{reading}")
    through: list[int] = []

    def feed() -> None:
        try:
            with os.fdopen(writing, "wb", buffering=0) as file:
                through.extend(file.write(piece) for _ in range(times))
        except BrokenPipeError:
            pass

    writer = threading.Thread(target=feed)
    writer.start()
    try:
        yield through
    finally:
        os.close(reading)
        writer.join()


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("endless", ("analyze", "PIPE")),
        ("endless.json", ("analyze", "PIPE")),
        ("endless", ("calls", "PIPE", "--rank", 0)),
        ("endless", ("compare", "JOB", "PIPE")),
        ("endless.yaml", ("analyze", "JOB", "--cluster", "PIPE")),
        ("endless.json", ("record", "--show", "PIPE")),
    ],
    ids=str,
)
def test_what_never_ends_is_refused_before_it_fills_the_memory(
    run: Run,
    jobs: Jobs,
    tmp_path: Path,
    name: str,
    command: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(document, "_LARGEST_JSON", MIB)
    link = tmp_path / name
    words = {"PIPE": link, "JOB": jobs["dense"]}
    with pipe(link, b"{y\n" * 1000, times=3000) as through:
        done = run(*(words.get(str(word), word) for word in command))
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert f"{link}: larger than 1,0" in done.err
    assert sum(through) < 4 * MIB


def test_a_job_from_a_pipe_is_read_like_its_file(run: Run, jobs: Jobs, tmp_path: Path):
    """As the shell's <(...) hands it over."""
    link = tmp_path / "piped"
    with pipe(link, jobs["dense"].read_bytes(), times=1):
        done = run("analyze", link)
    assert (done.code, done.out, done.err) == (0, run("analyze", jobs["dense"]).out, "")


@pytest.mark.parametrize("device", ["/dev/null", "FIFO"])
def test_a_model_is_in_a_regular_file(run: Run, jobs: Jobs, tmp_path: Path, device: str):
    """A job of somebody else's must not make us wait for what nobody writes; nor is there no such file."""
    if device == "FIFO":
        os.mkfifo(tmp_path / "FIFO")
        device = str(tmp_path / "FIFO")
    job = tmp_path / "job.yaml"
    job.write_text(f"model: {device}\nbatch: {{sequence: 8, global_batch: 1}}\n")
    for command in (("models", device), ("analyze", job)):
        done = run(*command)
        assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
        assert f"{device}: not a regular file, but a device or a pipe" in done.err


def test_a_mark_of_byte_order_is_no_part_of_a_file(run: Run, jobs: Jobs, tmp_path: Path):
    """As editors of Windows put it at the beginning."""
    bill = run("analyze", jobs["dense"], "--format", "json").out
    for name, text in (("job.yaml", jobs["dense"].read_text()), ("bill.json", bill)):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8-sig")
        assert run("analyze", path, "--format", "json").out == bill


def test_a_name_twice_in_json_is_refused_with_its_line(run: Run, jobs: Jobs, tmp_path: Path):
    config, bill = tmp_path / "config.json", tmp_path / "bill.json"
    config.write_text(
        '{"model_type": "gpt2",\n "n_embd": 8, "inner": [{"a": ":", "b": {"a": 1}}],\n "model_typ\\u0065": "llama"}'
    )
    text = run("analyze", jobs["dense"], "--format", "json").out
    bill.write_text(text.replace('"about": {', '"about": {\n"model": "another",', 1))
    again = next(i for i, line in enumerate(bill.read_text().splitlines(), 1) if '"model": "llama"' in line)
    recording = tmp_path / "rank-0.json"
    recording.write_text('{"recording": 1,\n"recording": 1}')
    for command, said in (
        (("models", config), f"{config}: line 3: 'model_type' is written twice."),
        (("analyze", bill), f"{bill}: line {again}: 'model' is written twice."),
        (("record", "--show", recording), f"{recording}: line 2: 'recording' is written twice."),
    ):
        done = run(*command)
        assert (done.code, done.out, done.err) == (2, "", f"meshcost: {said}\n")
    assert json.loads(text)
