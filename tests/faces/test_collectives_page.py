"""The teaching pages: what a person sees at 80 columns without colour, with and without Unicode."""

import io
import json
from fractions import Fraction

import pytest
from rich.console import Console

from meshcost.collectives import ALGORITHMS, DEFAULTS
from meshcost.collectives.gloo import HOW
from meshcost.collectives.operations import OPERATIONS, OTHERS, operation
from meshcost.collectives.optimality import fitted
from meshcost.errors import MeshcostError, UnknownAlgorithm
from meshcost.formula import parse, pretty, value
from meshcost.report.collectives import as_dict, overview, page
from meshcost.report.collectives_uses import TRAPS, USES
from meshcost.symbols import S, n

WIDTH = 80
PAGES = [*OPERATIONS, *OTHERS]
every_operation = pytest.mark.parametrize("op", OPERATIONS)
every_page = pytest.mark.parametrize("op", PAGES)


def shown(renderable: object, *, encoding: str = "utf-8", width: int = WIDTH) -> str:
    """Print on a terminal of fixed width without colour; a sign that the encoding lacks is an error."""
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding, newline="\n") as file:
        Console(file=file, width=width, no_color=True, force_terminal=False, _environ={}).print(renderable)
        file.flush()
        return "\n".join(line.rstrip() for line in raw.getvalue().decode(encoding).splitlines())


def flat(text: str) -> str:
    """Undo the wrapping of lines."""
    return " ".join(text.split())


ALL_REDUCE = """\
all_reduce: The buffers of all ranks are added up, and every rank gets the whole
sum.

          before        after
  rank 0  A0 A1 A2 A3 → A0+B0+C0+D0  A1+B1+C1+D1  A2+B2+C2+D2  A3+B3+C3+D3
  rank 1  B0 B1 B2 B3 → A0+B0+C0+D0  A1+B1+C1+D1  A2+B2+C2+D2  A3+B3+C3+D3
  rank 2  C0 C1 C2 C3 → A0+B0+C0+D0  A1+B1+C1+D1  A2+B2+C2+D2  A3+B3+C3+D3
  rank 3  D0 D1 D2 D3 → A0+B0+C0+D0  A1+B1+C1+D1  A2+B2+C2+D2  A3+B3+C3+D3

  A0 is chunk 0 of rank 0's data, B0 that of rank 1, and so on.

In and out
  S is the whole logical buffer in bytes, n the number of ranks. Each rank
  contributes S; each rank ends with S.
  The least that the busiest rank can send is 2*S*(n - 1)/n = 1.5 S. Each
  element takes n - 1 sends to be summed and n - 1 to be spread; n ranks share
  them. (Patarasuk and Yuan 2009)
"""

RING = """\
  ring (default)
    rounds             2*n - 2                           6       3
    sent               2*S*(n - 1)/n                     1.5 S   1 for any n
    received           2*S*(n - 1)/n                     1.5 S
    sent by all ranks  2*S*(n - 1)                       6 S
    added up           S*(n - 1)/n                       0.75 S
"""

TWO_STEPS = """\
all_reduce = reduce_scatter, then all_gather
          before        after reduce_scatter   after all_gather
  rank 0  A0 A1 A2 A3 → Σ0 .  .  .           → Σ0 Σ1 Σ2 Σ3
  rank 1  B0 B1 B2 B3 → .  Σ1 .  .           → Σ0 Σ1 Σ2 Σ3
  rank 2  C0 C1 C2 C3 → .  .  Σ2 .           → Σ0 Σ1 Σ2 Σ3
  rank 3  D0 D1 D2 D3 → .  .  .  Σ3          → Σ0 Σ1 Σ2 Σ3

  A0 is chunk 0 of rank 0's data, B0 that of rank 1, and so on; Σ0 = A0 + B0 +
  C0 + D0; . is nothing.
  By data: what is left at the end and what all_reduce leaves are equal, cell by
  cell.
  By formula, on a ring: 2*S*(n - 1)/n - S*(n - 1)/n - S*(n - 1)/n = 0.

Nearly independent of the number of ranks
  n     sent per rank, ring
  ───────────────────────────────────────────────
  2     S                    ██████████
  4     1.5 S                ███████████████
  8     1.75 S               ██████████████████
  64    1.969 S              ████████████████████
  1024  1.998 S              ████████████████████
  ∞     2 S                  ████████████████████

  What each rank sends nears 2 S, however many ranks take part.
"""

SCATTER_IN_ASCII = """\
          before            after
  rank 0  A0 A1 A2 A3 A4 -> *0 .  .  .  .
  rank 1  B0 B1 B2 B3 B4 -> .  *1 .  .  .
  rank 2  C0 C1 C2 C3 C4 -> .  .  *2 .  .
  rank 3  D0 D1 D2 D3 D4 -> .  .  .  *3 .
  rank 4  E0 E1 E2 E3 E4 -> .  .  .  .  *4

  A0 is chunk 0 of rank 0's data, B0 that of rank 1, and so on; *0 = A0 + B0 +
  ... + E0; . is nothing.
"""

OVERVIEW_ROWS = {
    "send_recv": ["AAAA → AAAA", ".... → AAAA", ".... → ....", ".... → ...."],
    "broadcast": ["AAAA → AAAA", ".... → AAAA", ".... → AAAA", ".... → AAAA"],
    "reduce": ["AAAA → ΣΣΣΣ", "BBBB → ....", "CCCC → ....", "DDDD → ...."],
    "all_reduce": ["AAAA → ΣΣΣΣ", "BBBB → ΣΣΣΣ", "CCCC → ΣΣΣΣ", "DDDD → ΣΣΣΣ"],
    "reduce_scatter": ["AAAA → Σ...", "BBBB → .Σ..", "CCCC → ..Σ.", "DDDD → ...Σ"],
    "all_gather": ["A... → ABCD", ".B.. → ABCD", "..C. → ABCD", "...D → ABCD"],
    "all_to_all": ["AAAA → ABCD", "BBBB → ABCD", "CCCC → ABCD", "DDDD → ABCD"],
}


def test_the_page_of_all_reduce():
    text = shown(page("all_reduce")) + "\n"
    assert text.startswith(ALL_REDUCE)
    assert RING in text
    assert TWO_STEPS in text


def test_a_page_in_ascii():
    assert SCATTER_IN_ASCII in shown(page("reduce_scatter", 5), encoding="ascii")


def columns(lines: list[str]) -> list[slice]:
    """Where the four columns of the overview stand, by its headings."""
    heads = ("operation", "who holds what", "sent per rank", "used by")
    heading = next(line for line in lines if all(head in line for head in heads))
    starts = [heading.index(head) for head in heads]
    return [slice(*ends) for ends in zip(starts, [*starts[1:], None], strict=True)]


def test_the_overview_has_a_row_for_each_operation():
    lines = shown(overview()).splitlines()
    _, picture, sent, _ = columns(lines)
    starts = [next(i for i, line in enumerate(lines) if line.split()[:1] == [op]) for op in OPERATIONS]
    assert starts == sorted(starts)
    for start, op in zip(starts, OPERATIONS, strict=True):
        call = operation(op).calls[0]
        row = lines[start : start + 4]
        assert [line[picture].strip() for line in row] == OVERVIEW_ROWS[op]
        assert row[0][sent].strip() == pretty(ALGORITHMS[DEFAULTS[call]].forms[call].sent)
        assert row[1][sent].strip() == DEFAULTS[call]


@every_operation
def test_the_overview_says_who_uses_it_and_when(op: str):
    lines = shown(overview()).splitlines()
    used = flat(" ".join(line[columns(lines)[-1]] for line in lines))
    for use in USES[op]:
        assert f"{use.strategy}: {use.when}" in used


@every_page
@pytest.mark.parametrize("ranks", [2, 4, 5, 13, 16])
def test_every_page_fits_80_columns_and_an_ascii_terminal(op: str, ranks: int):
    fits_and_falls_back(page(op, ranks), page(op, ranks, ascii_only=True))


def test_the_overview_fits_80_columns_and_an_ascii_terminal():
    fits_and_falls_back(overview(), overview(ascii_only=True))


def fits_and_falls_back(asking: object, told: object) -> None:
    rich, plain = shown(asking), shown(asking, encoding="ascii")
    assert plain.isascii()
    assert not rich.isascii()
    assert shown(told) == plain
    assert max(map(len, [*rich.splitlines(), *plain.splitlines()])) <= WIDTH


@every_page
def test_no_row_of_a_picture_is_broken_at_80_columns(op: str):
    for ranks in (2, 4, 5, 9, 16):
        lines = [flat(line) for line in shown(page(op, ranks)).splitlines()]
        stacked = next(line for line in lines if line.startswith("before")) == "before:"
        for rank, row in enumerate(as_dict(op, ranks)["before"]):
            first = next(line for line in lines if line.startswith(f"rank {rank} {row}"))
            assert len(first.split()) == (2 + ranks if stacked else 3 + 2 * ranks)


@every_page
@pytest.mark.parametrize("ranks", [2, 4, 7, 16])
def test_a_page_draws_every_cell(op: str, ranks: int):
    lines = shown(page(op, ranks), width=200).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("  rank 0"))
    states = operation(op).before(ranks), operation(op).after(ranks)
    for rank in range(ranks):
        label, *cells = lines[start + rank].replace("→", "").split()[1:]
        assert label == str(rank)
        drawn = [cell != "." for cell in cells]
        assert drawn == [cell is not None for state in states for cell in state[rank]]


@every_page
def test_a_page_names_every_algorithm_with_its_formulas(op: str):
    text = shown(page(op, 8), width=400)
    calls = operation(op).calls
    for name, algorithm in ALGORITHMS.items():
        forms = [algorithm.forms[call] for call in calls if call in algorithm.forms]
        assert bool(forms) == any(line.split()[:1] == [name] for line in text.splitlines())
        assert all(
            pretty(x) in text for form in forms for x in (form.sent, form.total, form.rounds) if x != 0
        )


@every_page
@pytest.mark.parametrize("ranks", [2, 5, 12])
def test_what_ranks_send_and_get_adds_up_to_all_that_is_sent(op: str, ranks: int):
    """A switch receives, too, and what it sends is in no total; a message to one rank has two ends, each with its form."""
    for name, cost in as_dict(op, ranks)["algorithms"].items():
        sides = [
            [Fraction(share[side]) for share in cost["by_rank"] for _ in share["ranks"]]
            for side in ("sent", "received")
        ]
        if op == "send_recv":
            assert not sides[0]
            continue
        assert len(sides[0]) == ranks
        assert sum(sides[0]) == Fraction(cost["total"]["exact"])
        assert [max(side) for side in sides] == [Fraction(cost[x]["exact"]) for x in ("sent", "received")]
        assert ALGORITHMS[name].switch or sum(sides[1]) == sum(sides[0])
        assert cost["source"]


def test_roles_are_named_where_ranks_differ():
    text = flat(shown(page("broadcast"), width=200))
    assert "ranks differ 0 sends 2 S, gets 0; 1, 3 send 0, gets S; 2 sends S, gets S" in text
    assert "ranks differ" not in flat(shown(page("all_to_all"), width=200)).split("rail")[0]


def test_an_algorithm_that_knows_nodes_stands_on_those_that_its_ranks_fill():
    rounds = as_dict("all_reduce", 12)["algorithms"]["hierarchical"]["rounds"]
    assert rounds["exact"] == "12"  # 2 nodes of 6: 2 * 5 inside and 2 * 1 between


@every_page
def test_a_page_says_what_gloo_does(op: str):
    text = flat(shown(page(op), width=300))
    assert HOW[op].capitalize() in text
    assert "144 B of frames" in text


@every_page
def test_a_page_says_who_uses_it_why_and_what_to_beware_of(op: str):
    text = flat(shown(page(op), width=300))
    for use in USES[op]:
        for part in (use.strategy, use.when, use.what, f"because {use.why}"):
            assert part in text
    for words in (*TRAPS[op], operation(op).torch, operation(op).nccl, operation(op).mpi):
        assert words in text


def test_a_mixture_of_experts_needs_all_to_all_for_a_reason():
    text = flat(shown(page("all_to_all")))
    assert "The router decides at run time, token by token" in text
    assert "it sends e/k times the bytes: 8 times for e = 64, k = 8." in text
    assert as_dict("all_to_all")["all_gather_over_all_to_all"] == "e/k"


@pytest.mark.parametrize("ranks", [0, 1, 17, -4])
def test_too_many_or_too_few_ranks_are_refused(ranks: int):
    for ask in (page, as_dict):
        with pytest.raises(MeshcostError) as caught:
            ask("all_reduce", ranks)
        assert str(caught.value) == f"ranks: {ranks} cannot be drawn: choose a whole number from 2 to 16."


def test_an_unknown_operation_is_refused():
    for ask in (page, as_dict):
        with pytest.raises(UnknownAlgorithm, match=r"'scater' is not an operation: choose from send_recv, "):
            ask("scater")


@every_page
@pytest.mark.parametrize("ranks", [2, 7, 16])
def test_the_data_are_json_and_agree_with_the_algorithms(op: str, ranks: int):
    data = json.loads(json.dumps(as_dict(op, ranks)))
    assert data["name"] == op
    assert [len(row.split()) for row in data["before"] + data["after"]] == [ranks] * (2 * ranks)
    for name, cost in data["algorithms"].items():
        for side in ("sent", "received", "total", "rounds"):
            assert str(value(parse(cost[side]["formula"]), {S: 1, n: ranks})) == cost[side]["exact"]
        forms = [fitted(ALGORITHMS[name], ranks).forms[call] for call in operation(op).calls]
        assert cost["sent"]["formula"] == pretty(forms[0].sent)
        assert cost["received"]["formula"] == pretty(forms[-1].received)
        assert cost["to_bound"]["unit"] == "1"


def test_all_operations_as_data():
    data = as_dict(ranks=3)
    assert [each["name"] for each in data["operations"]] == list(OPERATIONS)
    assert data["operations"][3] == as_dict("all-reduce", 3)
    assert data["operations"][3]["after"] == ["A0+B0+C0 A1+B1+C1 A2+B2+C2"] * 3
    assert data["operations"][3]["identity"]["equal"] is True
    assert data["operations"][3]["growth"]["oo"] == "2"


def test_words_are_there_for_every_operation_and_no_other():
    assert list(USES) == list(TRAPS) == PAGES
    assert set(HOW) == set(PAGES)
    assert all(USES.values())
    assert all(TRAPS.values())
