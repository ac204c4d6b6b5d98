"""The teaching pages of ``meshcost collectives``: seven operations, what each does, costs and is used for.

What an operation does is data of ``collectives.operations``; what it costs is a form of an algorithm. Both are only
drawn here. A page is a renderable: print it on any rich console; it keeps to ASCII where the terminal has no more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.box import Box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from sympy import Expr, Integer, Symbol

from meshcost.collectives import DEFAULTS
from meshcost.collectives.gloo import ENDS, FRAME_BYTES, HOW, SENT, turning_point
from meshcost.collectives.operations import OPERATIONS, Operation, operation
from meshcost.formula import value
from meshcost.report.collectives_costs import cost_tables
from meshcost.report.collectives_facts import (
    RING_SHOWN,
    as_dict,
    costs,
    gather_over_exchange,
    growth,
    identity,
    ring_rounds,
)
from meshcost.report.collectives_group import GROUP, Group, grouped
from meshcost.report.collectives_notes import footnotes, functions
from meshcost.report.collectives_picture import (
    ASCII,
    UNICODE,
    Glyphs,
    before_after,
    draw,
    draw_rows,
    legend,
    panel,
    tiny,
)
from meshcost.report.collectives_uses import TRAPS, USES
from meshcost.report.notation import limit, multiple, written
from meshcost.symbols import S, e, k

__all__ = ["as_dict", "overview", "page"]

_BAR = 20
_MIB = 2**20
_NAME = 18


def overview(*, ascii_only: bool | None = None) -> RenderableType:
    """All seven operations in one table. ``ascii_only`` None asks the console."""
    return _Overview(ascii_only)


def page(
    op: str, ranks: int = 4, ranks_per_node: int | None = None, *, ascii_only: bool | None = None
) -> RenderableType:
    """Everything about one operation, drawn for 2 to 16 ranks. ``ascii_only`` None asks the console.

    Nodes are as large as two of them can be, unless ``ranks_per_node`` is given. Raises UnknownAlgorithm if there is no
    such operation, and MeshcostError if so many ranks are not drawn or do not fill such nodes.
    """
    return _Page(operation(op), grouped(ranks, ranks_per_node), ascii_only)


def _glyphs(options: ConsoleOptions, ascii_only: bool | None) -> Glyphs:
    return ASCII if (options.ascii_only if ascii_only is None else ascii_only) else UNICODE


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
        yield Text("The seven operations, between 3 ranks A, B, C that hold 3 chunks each", style="bold")
        yield Text("")
        table = _table(glyphs, "operation", "who holds what", "sent per rank", "used by")
        table.columns[0].max_width = _NAME
        table.columns[1].no_wrap = True  # a picture in pieces says nothing
        formulas = ""
        for op in OPERATIONS.values():
            name = Text.assemble((op.name, "bold"), f"\n{op.brief}")
            used = Text("\n").join(
                Text.assemble((use.strategy, "bold"), f": {use.when}") for use in USES[op.name]
            )
            sent = Text("\n".join(_sent(op, glyphs)))
            formulas += sent.plain
            table.add_row(name, Text("\n".join(tiny(op, glyphs))), sent, used, end_section=True)
        yield table
        yield Text("")
        yield Text(
            f"A1: chunk 1 of rank A's data; {glyphs.sum}1: the sum of chunk 1 over all ranks; . is nothing. S: bytes of the "
            f"whole logical buffer; n: ranks. Sent per rank: by the busiest one, under the algorithm named, and what that "
            f"comes to for ever more ranks. {' '.join(functions(formulas, glyphs))}".rstrip()
        )
        yield Text(
            "One operation in full: meshcost collectives all_reduce. Also on the shelf, but in no step of a bill: gather, "
            "scatter, barrier."
        )


def _sent(op: Operation, glyphs: Glyphs) -> Iterator[str]:
    """What the busiest rank sends by default: the formula, the algorithm, and the limit for many ranks."""
    best = next(cost for cost in costs(op) if cost.algorithm == DEFAULTS[op.calls[0]])
    yield written(best.sent, glyphs)
    yield best.algorithm
    if best.sent != S:
        yield f"{glyphs.arrow} {limit(GROUP.for_many_ranks(best.sent), 'S', glyphs)}"


@dataclass(frozen=True, slots=True)
class _Page:
    op: Operation
    group: Group
    ascii_only: bool | None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs, width = _glyphs(options, self.ascii_only), options.max_width - 2
        op, ranks = self.op, self.group.ranks
        yield Text.assemble((op.name, "bold"), f": {op.meaning}")
        if op.lower_bound:
            picture, how = before_after(op, ranks, glyphs, width)
            yield Text("")
            yield _indented(Text("\n".join(picture), overflow="fold"))
            yield Text("")
            yield _indented(Text(how))
            yield from _section("In and out", *_in_and_out(op, self.group, glyphs))
        heading = f"What it costs between {self.group.sentence}"
        yield from _section(
            heading, *cost_tables(op, self.group, glyphs, width), *footnotes(op, self.group, glyphs)
        )
        if op.name in RING_SHOWN:
            yield from _ring(op, ranks, glyphs, width)
        yield from _section("As Gloo runs it, PyTorch's library for CPUs", *_on_gloo(op, self.group, glyphs))
        if op.name == "all_reduce":
            yield from _two_steps(ranks, glyphs, width)
            yield from _section("Nearly independent of the number of ranks", *_growth(glyphs))
        if op.name == "all_to_all":
            yield from _section("Why a mixture of experts needs it", *_why_experts())
        yield from _section("Who uses it", _use_table(op, glyphs))
        yield from _section("Traps", _bullets(*TRAPS[op.name]))
        yield from _section("Spelled", *_spelled(op, self.group))


def _in_and_out(op: Operation, group: Group, glyphs: Glyphs) -> Iterator[Text]:
    least, number = written(op.lower_bound, glyphs), multiple(group.payloads(op.lower_bound), "S")
    yield Text(
        f"S is the whole logical buffer in bytes, n the number of ranks. {op.contributor.capitalize()} contributes "
        f"{written(op.contributes, glyphs)}; {op.receiver} ends with {written(op.ends_with, glyphs)}."
    )
    figure = least if least == number else f"{least} = {number}"
    yield Text(
        f"The least that the busiest rank can {op.bound_verb} is {figure}. {op.bound_reason} ({op.bound_source})"
    )


def _on_gloo(op: Operation, group: Group, glyphs: Glyphs) -> Iterator[Text]:
    how, sent = HOW[op.name], SENT[op.calls[0]]
    data = f"Its busiest rank sends {_busiest(sent, group, glyphs)}, and each" if sent else "Each"
    yield Text(
        f"{how[0].upper()}{how[1:]}. {data} message has {FRAME_BYTES} B of frames: {ENDS}. meshcost verify counts it."
    )


def _busiest(sent: Expr, group: Group, glyphs: Glyphs) -> str:
    """Write what is sent here; where large buffers fare otherwise, up to which size that is so, and what comes after."""
    mib = Symbol("MiB", positive=True)
    large = {x: x / _MIB * mib for x in sent.atoms(Integer) if x >= _MIB}
    turn = turning_point(sent.xreplace(large))
    if turn is not None:
        most, below, above = (written(part, glyphs) for part in turn)
        here = float(group.payloads(turn[0].xreplace({mib: Integer(1)})))
        return f"{below} up to S = {most} ({here:g} MiB here), above that {above}"
    figure = f" = {multiple(group.payloads(sent), 'S')}" if sent.free_symbols - {S} else ""
    return f"{written(sent, glyphs)}{figure}"


def _ring(op: Operation, ranks: int, glyphs: Glyphs, width: int) -> Iterator[RenderableType]:
    states = ring_rounds(op.name, ranks)
    titles = "before", *(f"round {number}" for number in range(1, len(states)))
    panels = [panel(title, state, glyphs, spelled=False) for title, state in zip(titles, states, strict=True)]
    yield from _section(
        f"The ring, round by round, between {len(states[0])} ranks",
        Text("\n".join(draw_rows(panels, glyphs, width)), overflow="fold"),
        Text(""),
        Text(legend(states, glyphs, spelled=False, empty="nothing, or nothing that the rank still needs")),
    )


def _two_steps(ranks: int, glyphs: Glyphs, width: int) -> Iterator[RenderableType]:
    proof = identity(ranks)
    titles = "before", "after reduce_scatter", "after all_gather"
    panels = [panel(x, state, glyphs, spelled=False) for x, state in zip(titles, proof.states, strict=True)]
    verdict = "equal, cell by cell" if proof.equal else "different"
    terms = " - ".join(written(sent, glyphs) for sent in proof.sent)
    yield from _section(
        "all_reduce = reduce_scatter, then all_gather",
        Text("\n".join(draw(panels, glyphs, width)), overflow="fold"),
        Text(""),
        Text(legend(proof.states, glyphs, spelled=False)),
        Text(f"By data: what is left at the end and what all_reduce leaves are {verdict}."),
        Text(f"By formula, on a ring: {terms} = {written(proof.difference, glyphs)}."),
    )


def _growth(glyphs: Glyphs) -> Iterator[RenderableType]:
    rows = growth()
    top = rows[-1][1]
    table = _table(glyphs, "n", "sent per rank, ring", "")
    for at, amount in rows:
        label = glyphs.infinity if at == "oo" else at
        table.add_row(*map(Text, (label, multiple(amount, "S"), glyphs.bar * round(amount / top * _BAR))))
    yield table
    yield Text("")
    yield Text(f"What each rank sends nears {multiple(top, 'S')}, however many ranks take part.")


def _why_experts() -> Iterator[Text]:
    times, example = gather_over_exchange(), {e: 64, k: 8}
    yield Text(
        "The router decides at run time, token by token, which k experts a token visits. No rank can know beforehand "
        "what it will receive, so nothing can be placed in advance; each pair of ranks has its own tokens to exchange."
    )
    yield Text(
        "Sending every token to every rank (all_gather) would also work. With the experts on e ranks and tokens spread "
        f"evenly it sends {times} times the bytes: {value(times, example)} times for e = 64, k = 8. "
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


def _spelled(op: Operation, group: Group) -> Iterator[Text]:
    yield Text(f"torch.distributed  {op.torch}")
    yield Text(f"NCCL               {op.nccl}")
    yield Text(f"MPI                {op.mpi}")
    if not op.lower_bound:
        return
    factor = op.busbw_factor
    here = f" ({multiple(group.payloads(factor))} here)" if factor.free_symbols else ""
    yield Text(f"nccl-tests         busbw = S / time * {factor}{here}")
