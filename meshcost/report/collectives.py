"""The teaching pages of ``meshcost collectives``: seven operations, what each does, costs and is used for.

What an operation does is data of ``collectives.operations``; what it costs is a form of an algorithm. Both are only
drawn here. A page is a renderable: print it on any rich console; it keeps to ASCII where the terminal has no more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from rich.box import Box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshcost.collectives import DEFAULTS
from meshcost.collectives.gloo import FRAME_BYTES, HOW, SENT
from meshcost.collectives.operations import OPERATIONS, Operation, operation
from meshcost.collectives.optimality import optimality
from meshcost.formula import COUNTS, pretty, value
from meshcost.report.collectives_facts import (
    Share,
    as_dict,
    costs,
    drawn,
    gather_over_exchange,
    growth,
    identity,
    in_payloads,
)
from meshcost.report.collectives_picture import (
    ASCII,
    UNICODE,
    Glyphs,
    before_after,
    draw,
    legend,
    panel,
    tiny,
)
from meshcost.report.collectives_uses import TRAPS, USES
from meshcost.report.words import runs
from meshcost.symbols import S, e, k

__all__ = ["as_dict", "overview", "page"]

_FUNCTIONS = {
    "log2_ceiling": "how often 1 must be doubled to reach n or more",
    "power2_floor": "the largest power of two that is not above n",
    "ones_below": "ones in the binary digits of 0 to n - 1 together",
}
_BAR = 20
_NAME = 18


def overview(*, ascii_only: bool | None = None) -> RenderableType:
    """All seven operations in one table. ``ascii_only`` None asks the console."""
    return _Overview(ascii_only)


def page(op: str, ranks: int = 4, *, ascii_only: bool | None = None) -> RenderableType:
    """Everything about one operation, drawn for 2 to 16 ranks. ``ascii_only`` None asks the console.

    Raises UnknownAlgorithm if there is no such operation, and MeshcostError if so many ranks are not drawn.
    """
    return _Page(operation(op), drawn(ranks), ascii_only)


def _glyphs(options: ConsoleOptions, ascii_only: bool | None) -> Glyphs:
    return ASCII if (options.ascii_only if ascii_only is None else ascii_only) else UNICODE


def _number(amount: Fraction, unit: str = "") -> str:
    text = f"{float(amount):.4g}"
    return text if not unit or not amount else unit if amount == 1 else f"{text} {unit}"


def _table(glyphs: Glyphs, *headings: str) -> Table:
    rule = f" {glyphs.line * 2} "
    rows = ["    "] * 2 + [rule] + ["    "] * 5
    box = Box("".join(f"{row}\n" for row in rows), ascii=glyphs is ASCII)
    table = Table(box=box, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(Text(heading), overflow="fold")
    return table


def _bullets(*sentences: str) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        grid.add_row(Text("-"), Text(sentence))
    return grid


def _indented(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, 2))


def _section(heading: str, *contents: RenderableType) -> Iterator[RenderableType]:
    yield Text("")
    yield Text(heading, style="bold")
    yield from map(_indented, contents)


@dataclass(frozen=True, slots=True)
class _Overview:
    ascii_only: bool | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = _glyphs(options, self.ascii_only)
        yield Text("The seven operations, between 4 ranks A, B, C, D that hold 4 chunks each", style="bold")
        yield Text("")
        table = _table(glyphs, "operation", "who holds what", "sent per rank", "used by")
        table.columns[0].max_width = _NAME
        for op in OPERATIONS.values():
            best = next(cost for cost in costs(op) if cost.algorithm == DEFAULTS[op.calls[0]])
            name = Text.assemble((op.name, "bold"), f"\n{op.brief}")
            sent = f"{pretty(best.sent)}\n{best.algorithm}"
            used = Text("\n").join(
                Text.assemble((use.strategy, "bold"), f": {use.when}") for use in USES[op.name]
            )
            table.add_row(name, Text("\n".join(tiny(op, glyphs))), Text(sent), used, end_section=True)
        yield table
        yield Text(
            f"A letter says whose data a chunk is, {glyphs.sum} is the sum over all ranks, . is nothing. S: bytes of "
            "the whole logical buffer; n: ranks. Sent per rank: by the busiest one, under the algorithm named."
        )
        yield Text(
            "One operation in full: meshcost collectives all_reduce. Also on the shelf, but in no step of a bill: gather, "
            "scatter, barrier."
        )


@dataclass(frozen=True, slots=True)
class _Page:
    op: Operation
    ranks: int
    ascii_only: bool | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs, width = _glyphs(options, self.ascii_only), options.max_width - 2
        op, ranks = self.op, self.ranks
        yield Text.assemble((op.name, "bold"), f": {op.meaning}")
        yield Text("")
        yield _indented(Text("\n".join(before_after(op, ranks, glyphs, width)), overflow="fold"))
        yield Text("")
        yield _indented(Text(legend(op, ranks, glyphs)))
        yield from _section("In and out", *_in_and_out(op, ranks))
        heading = f"What it costs between {ranks} ranks (sent, received: the busiest)"
        yield from _section(heading, _cost_table(op, ranks, glyphs), *_words(op))
        yield from _section("As Gloo runs it, PyTorch's library for CPUs", *_on_gloo(op, ranks))
        if op.name == "all_reduce":
            yield from _two_steps(ranks, glyphs, width)
            yield from _section("Nearly independent of the number of ranks", *_growth(glyphs))
        if op.name == "all_to_all":
            yield from _section("Why a mixture of experts needs it", *_why_experts())
        yield from _section("Who uses it", _use_table(op, glyphs))
        yield from _section("Traps", _bullets(*TRAPS[op.name]))
        yield from _section("Spelled", *_spelled(op, ranks))


def _in_and_out(op: Operation, ranks: int) -> Iterator[Text]:
    least, number = pretty(op.lower_bound), _number(in_payloads(op.lower_bound, ranks), "S")
    yield Text(
        f"S is the whole logical buffer in bytes, n the number of ranks. {op.contributor.capitalize()} contributes "
        f"{pretty(op.contributes)}; {op.receiver} ends with {pretty(op.ends_with)}."
    )
    figure = least if least == number else f"{least} = {number}"
    yield Text(
        f"The least that the busiest rank can {op.bound_verb} is {figure}. {op.bound_reason} ({op.bound_source})"
    )


def _cost_table(op: Operation, ranks: int, glyphs: Glyphs) -> Table:
    table = _table(glyphs, "algorithm", "formula", f"n = {ranks}", "times the least")
    least = {row.algorithm: row for row in optimality(ranks, op.calls[0])}
    for cost in costs(op, ranks):
        default = " (default)" * (cost.algorithm == DEFAULTS[op.calls[0]])
        table.add_row(Text.assemble((cost.algorithm, "bold"), default))
        row = least[cost.algorithm]
        rounds = _times(row.rounds_ratio, always=row.least_rounds)
        most = _times(row.bytes_ratio, always=row.least_bytes)
        for label, amount, unit, ratio in (
            ("rounds", cost.rounds, "", rounds),
            ("sent", cost.sent, "S", most if cost.busy_sender(ranks) else ""),
            ("received", cost.received, "S", "" if cost.busy_sender(ranks) else most),
            ("sent by all ranks", cost.total, "S", ""),
            *([("added up", cost.added, "S", "")] if cost.added else []),
        ):
            figure = _number(in_payloads(amount, ranks), unit)
            table.add_row(*map(Text, (f"  {label}", pretty(amount), figure, ratio)))
        if len(cost.shares) > 1:
            table.add_row(Text("  ranks differ"), Text("; ".join(map(_shared, cost.shares))))
        table.add_row(Text("  source"), Text(cost.source))
        table.add_section()
    return table


def _shared(share: Share) -> str:
    who = f"{runs(share.ranks)} sends" if len(share.ranks) == 1 else f"{runs(share.ranks)} send"
    return f"{who} {_number(share.sent, 'S')}, gets {_number(share.received, 'S')}"


def _times(ratio: Fraction, *, always: bool) -> str:
    return f"{_number(ratio)}{' for any n' if always else ''}"


def _words(op: Operation) -> Iterator[Text]:
    yield Text("")
    yield Text(
        "Times the least: what an algorithm sends or receives, whichever is more, over the least bytes above; its "
        "rounds over the fewest that its ports allow, log2_ceiling(n) with one, 1 with a port for each peer, 2 through "
        "a switch. A switch that adds may send less than the least. Added up: by the busiest rank."
    )
    forms = [x for cost in costs(op) for x in (cost.rounds, cost.sent, cost.received, cost.total, cost.added)]
    for name, meaning in _FUNCTIONS.items():
        if any(amount.has(COUNTS[name]) for amount in forms):
            yield Text(f"{name}(n): {meaning}.")


def _on_gloo(op: Operation, ranks: int) -> Iterator[Text]:
    sent = SENT[op.calls[0]]
    yield Text(
        f"{HOW[op.name].capitalize()}. Its busiest rank sends {pretty(sent)}"
        + (f" = {_number(in_payloads(sent, ranks), 'S')}" if sent.free_symbols - {S} else "")
        + f", and each message has {FRAME_BYTES} B of frames. meshcost verify counts it."
    )


def _two_steps(ranks: int, glyphs: Glyphs, width: int) -> Iterator[RenderableType]:
    proof = identity(ranks)
    titles = "before", "after reduce_scatter", "after all_gather"
    panels = [panel(x, state, glyphs, spelled=False) for x, state in zip(titles, proof.states, strict=True)]
    verdict = "equal, cell by cell" if proof.equal else "different"
    terms = " - ".join(pretty(sent) for sent in proof.sent)
    yield from _section(
        "all_reduce = reduce_scatter, then all_gather",
        Text("\n".join(draw(panels, glyphs, width)), overflow="fold"),
        Text(""),
        Text(legend(operation("reduce_scatter"), ranks, glyphs, spelled=False)),
        Text(f"By data: what is left at the end and what all_reduce leaves are {verdict}."),
        Text(f"By formula, on a ring: {terms} = {pretty(proof.difference)}."),
    )


def _growth(glyphs: Glyphs) -> Iterator[RenderableType]:
    rows = growth()
    top = rows[-1][1]
    table = _table(glyphs, "n", "sent per rank, ring", "")
    for at, amount in rows:
        label = glyphs.infinity if at == "oo" else at
        table.add_row(*map(Text, (label, _number(amount, "S"), glyphs.bar * round(amount / top * _BAR))))
    yield table
    yield Text("")
    yield Text(f"What each rank sends nears {_number(top, 'S')}, however many ranks take part.")


def _why_experts() -> Iterator[Text]:
    times, example = gather_over_exchange(), {e: 64, k: 8}
    yield Text(
        "The router decides at run time, token by token, which k experts a token visits. No rank can know beforehand "
        "what it will receive, so nothing can be placed in advance; each pair of ranks has its own tokens to exchange."
    )
    yield Text(
        "Sending every token to every rank (all_gather) would also work. With the experts on e ranks and tokens spread "
        f"evenly it sends {pretty(times)} times the bytes: {value(times, example)} times for e = 64, k = 8. "
        "Only where k is not less than e does it cost no more."
    )
    yield Text("The price: sizes differ from pair to pair and step to step, so counts are exchanged first.")


def _use_table(op: Operation, glyphs: Glyphs) -> Table:
    table = _table(glyphs, "strategy", "when", "on what, and why")
    for use in USES[op.name]:
        table.add_row(
            Text(use.strategy), Text(use.when), Text(f"{use.what},\nbecause {use.why}"), end_section=True
        )
    return table


def _spelled(op: Operation, ranks: int) -> Iterator[Text]:
    yield Text(f"torch.distributed  {op.torch}")
    yield Text(f"NCCL               {op.nccl}")
    yield Text(f"MPI                {op.mpi}")
    if not op.lower_bound:
        return
    factor = op.busbw_factor
    here = f" ({_number(in_payloads(factor, ranks))} here)" if factor.free_symbols else ""
    yield Text(f"nccl-tests         busbw = S / time * {pretty(factor)}{here}")
