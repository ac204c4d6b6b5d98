"""The page of ``meshcost trace``: what was predicted beside what PyTorch called."""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from meshcost.report import words
from meshcost.report.grid import Column, Grid

#: Seconds before a progress bar appears.
_PATIENCE = 2.0

_COUNTED = (
    "Bytes that each rank sent, counted by the kernel on its TCP sockets (TCP_INFO); one frame of Gloo\n"
    "(144 B) may be missing or left over. Gloo runs a reduce-scatter as an all-reduce."
)
_WRONG = "WRONG"
_UNCOUNTED = "Bytes: not counted, because this kernel does not count them per socket."


class Moved(Protocol):
    """What a rank moved in a step, beside the prediction."""

    @property
    def predicted(self) -> Any:
        """By payload and messages."""

    @property
    def measured(self) -> tuple[int, int] | None:
        """Bytes sent and received; None where nothing counts."""

    @property
    def frame_bytes(self) -> int:
        """The part of what is sent that is frames."""

    @property
    def off_bytes(self) -> int:
        """By how much they differ."""

    @property
    def agrees(self) -> bool:
        """Whether they are equal within a frame."""


class Step(Protocol):
    """One step of one rank, held against its prediction."""

    @property
    def rank(self) -> int:
        """The rank."""

    @property
    def step(self) -> int:
        """Which step, from 0."""

    @property
    def predicted(self) -> int:
        """Calls that were predicted."""

    @property
    def observed(self) -> int:
        """Calls that were made."""

    @property
    def payload_bytes(self) -> int:
        """Bytes of all their payloads."""

    @property
    def equal(self) -> bool:
        """Whether both sides are the same."""

    @property
    def verdict(self) -> str:
        """That in a word."""

    @property
    def alike(self) -> tuple[Hashable, ...]:
        """What it shares with a rank that differs only in whom it talks to."""

    @property
    def wire(self) -> Moved | None:
        """Bytes on the wire; None where nothing was sent."""

    def why(self, title: str) -> str:
        """What differs, under a title."""


class Check(Protocol):
    """What was asked for."""

    @property
    def title(self) -> str:
        """The layout and the version."""

    @property
    def how(self) -> str:
        """How it is run."""

    @property
    def notes(self) -> list[str]:
        """What else there is to say."""

    @property
    def remarks(self) -> list[str]:
        """What there is to say of the steps that were run."""

    def named(self, step: int) -> str:
        """A step as it is called."""


@dataclass(frozen=True, slots=True)
class Held:
    """All steps of all ranks as a rich renderable: ranks that say the same share a line."""

    model: str
    check: Check
    steps: Sequence[Step]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield lines that fit the console."""
        signs = words.glyphs(options)
        yield Text(f"{self.model}: {self.check.title}", style="bold")
        yield from (Text(note, style="dim") for note in (self.check.how, *self.check.notes))
        yield Text("")
        columns = [
            Column("ranks"), Column("step"), Column("predicted", "right"), Column("observed", "right"),
            Column("payload", "right", drop=1), Column("calls"),
        ]  # fmt: skip
        grid, groups = Grid(columns, signs.line), self._groups()
        for ranks, step in groups:
            cells = f"{step.predicted:,}", f"{step.observed:,}", words.size(step.payload_bytes), step.verdict
            style = "" if step.equal else "bold red"
            grid.row(words.runs(ranks), self.check.named(step.step), *cells, style=style)
        yield from grid.fit(options.max_width)
        yield Text("")
        yield from self._bytes(signs.line, options.max_width)
        yield from (Text(remark, style="yellow") for remark in self.check.remarks)
        for ranks, step in groups:
            if not step.equal:
                where = f"{'rank' if len(ranks) == 1 else 'ranks'} {words.runs(ranks)}, step {step.step}"
                yield Text(step.why(f"{self.check.title}, {where}") + "\n")
        yield self._verdict()

    def _groups(self) -> list[tuple[tuple[int, ...], Step]]:
        groups: dict[Hashable, list[Step]] = {}
        for step in self.steps:
            groups.setdefault(step.alike, []).append(step)
        return [(tuple(step.rank for step in found), found[0]) for found in groups.values()]

    def _bytes(self, rule: str, width: int) -> Iterator[Text]:
        """What each rank moved in the last step, and in any in which it moved something else than predicted."""
        last = max((step.step for step in self.steps), default=0)
        moved = [(x, x.wire) for x in self.steps if x.wire and (x.step == last or not x.wire.agrees)]
        if not moved:
            return
        titles = "ranks", "step", "payload sent", "frames", "predicted", "measured", "off"
        grid = Grid(
            [Column(title, "right" if place > 1 else "left") for place, title in enumerate(titles)], rule
        )
        alike: dict[tuple[str, ...], list[int]] = {}
        for step, wire in moved:
            alike.setdefault((str(step.step), *_figures(wire)), []).append(step.rank)
        for cells, ranks in alike.items():
            grid.row(words.runs(tuple(ranks)), *cells, style="bold red" if cells[-1].endswith(_WRONG) else "")
        yield from grid.fit(width)
        yield Text(_COUNTED if moved[0][1].measured else _UNCOUNTED, style="dim")
        yield Text("")

    def _verdict(self) -> Text:
        calls = sum(step.observed for step in self.steps)
        ranks, wrong = ({x.rank for x in self.steps if not (x.equal and every)} for every in (False, True))
        if not wrong:
            said = f"{words.plural(calls, 'call')} of {words.plural(len(ranks), 'rank')}"
            counted = all(step.wire and step.wire.measured for step in self.steps)
            bytes_too = ", and every rank moved the predicted bytes" if counted else ""
            return Text(f"equal: {said}, each as predicted and in order{bytes_too}.", style="bold green")
        return Text(f"different on {words.plural(len(wrong), 'rank')}.", style="bold red")


def _figures(wire: Moved) -> tuple[str, ...]:
    predicted = f"{wire.predicted.sent_payload:,}", f"{wire.frame_bytes:,}", f"{wire.predicted.sent_bytes:,}"
    if wire.measured is None:
        return (*predicted, "not counted", words.NOTHING)
    off = f"{wire.off_bytes:+,} B" if wire.off_bytes else "0 B"
    return (*predicted, f"{wire.measured[0]:,}", off if wire.agrees else f"{off} {_WRONG}")


def watch(run: Callable[[Callable[[int], None]], Iterable[Any]], total: int) -> list[Any]:
    """Collect what a run yields; after two seconds a person sees on the error stream how far it is."""
    console = Console(stderr=True, highlight=False)
    columns = TextColumn("trace"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("running PyTorch", total=total)
    late = threading.Timer(_PATIENCE, bar.start)
    late.daemon = True
    late.start()

    def advance(rank: int) -> None:
        bar.update(task, advance=1, description=f"rank {rank} is done")

    try:
        return list(run(advance))
    finally:
        late.cancel()
        bar.stop()
