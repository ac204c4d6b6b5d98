"""Footnotes to what algorithms cost: each sign and word that the tables of a page use, and no other."""

from collections.abc import Iterator

from rich.text import Text
from sympy import Expr
from sympy.functions.elementary.miscellaneous import Min

from meshcost.collectives import ALGORITHMS
from meshcost.collectives.operations import Operation
from meshcost.collectives.optimality import Optimality, optimality
from meshcost.formula import MEANINGS, power2_floor
from meshcost.report.collectives_facts import Cost, costs
from meshcost.report.collectives_group import Group
from meshcost.report.collectives_picture import Glyphs
from meshcost.report.notation import written
from meshcost.symbols import n

#: 0 for a power of two, else 1.
_ODD = Min(1, n - power2_floor(n))


def footnotes(op: Operation, group: Group, glyphs: Glyphs) -> Iterator[Text]:
    """Yield what the tables do not say themselves, each in a paragraph of its own."""
    found, least = costs(op, group), optimality(group.ranks, op.calls[0], group.per_node)
    yield Text("")
    if op.lower_bound:
        yield Text(_bytes(found, least))
    if any(cost.partly_crossing(group) is not None for cost in found):
        yield Text(
            "Of it between nodes: what all ranks together send to ranks on other nodes. It depends on who is where, so it "
            "is counted message by message on the schedule, and has no formula."
        )
    rounds = _rounds(found, glyphs)
    yield Text(rounds)
    yield from map(Text, _signs(found, group, glyphs))
    for line in functions(rounds + "".join(written(x, glyphs) for x in _forms(found)), glyphs):
        yield Text(line, style="dim")


def functions(text: str, glyphs: Glyphs) -> Iterator[str]:
    """Say what each function means that a text of formulas uses, and no other.

    >>> from meshcost.report.collectives_picture import UNICODE
    >>> list(functions("S*⌈log2 n⌉", UNICODE))
    ['⌈a⌉: rounded up to a whole number.']
    """
    signs = {
        "ceiling": "a".join(glyphs.ceiling),
        "floor": "a".join(glyphs.floor),
        "ones_below": "ones_below(n)",
        "Max": "Max(a, b)",
        "Min": "Min(a, b)",
    }
    for name, sign in signs.items():
        if sign[: sign.index("(") + 1 if "(" in sign else 1] in text:
            yield f"{sign}: {MEANINGS[name]}."


def _forms(found: tuple[Cost, ...]) -> list[Expr]:
    return [x for cost in found for x in (cost.rounds, cost.sent, cost.received, cost.total, cost.added)]


def _bytes(found: tuple[Cost, ...], least: tuple[Optimality, ...]) -> str:
    names = "Sent, received, added up" if any(cost.added for cost in found) else "Sent, received"
    less = " Below 1 a switch adds up, so that no rank passes on what it got from others."
    return (
        f"{names}: by the busiest rank. Times the least: what it sends or receives, whichever is more, over the least "
        f"bytes above.{less * any(row.bytes_ratio < 1 for row in least)}"
    )


def _rounds(found: tuple[Cost, ...], glyphs: Glyphs) -> str:
    kinds = [ALGORITHMS[cost.algorithm] for cost in found]
    passed_on = any(kind.ports and not kind.switch for kind in kinds)
    grows = (
        "where a rank sends k messages at once, those who know of something can grow k + 1 times in a round, which takes "
        f"{'log(k+1) n'.join(glyphs.ceiling)}"
    )
    known = [
        *[grows] * passed_on,
        *["all messages at once take 1"] * any(not kind.ports and not kind.switch for kind in kinds),
        *["a switch takes 2"] * any(kind.switch for kind in kinds),
    ]
    return f"Rounds are compared with the fewest that are possible: {'; '.join(known)}."


def _signs(found: tuple[Cost, ...], group: Group, glyphs: Glyphs) -> Iterator[str]:
    forms = _forms(found)
    jumps = any(group.for_many_ranks(amount) is None for amount in forms)
    why = "; - where that depends on how far n is from a power of two" * jumps
    yield f"n {glyphs.arrow} {glyphs.infinity}: for ever more ranks{why}."
    if any(cost.inside is not None for cost in found):
        yield f"g: ranks in one node, here {group.per_node}; --ranks-per-node says otherwise."
    if any(amount.has(_ODD) for amount in forms):
        yield f"{written(_ODD, glyphs)}: 0 if n is a power of two, else 1."
