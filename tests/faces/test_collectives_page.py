"""The teaching pages: what a person sees at 80 columns without colour, with and without Unicode."""

import io
import json
import re
from fractions import Fraction

import pytest
from rich.console import Console

from meshcost.collectives import ALGORITHMS
from meshcost.collectives.gloo import HOW
from meshcost.collectives.hierarchical import OnNodes
from meshcost.collectives.operations import OPERATIONS, OTHERS, operation
from meshcost.errors import MeshcostError, UnknownAlgorithm
from meshcost.formula import COUNTS, MEANINGS, parse, pretty, value
from meshcost.report.collectives import as_dict, overview, page
from meshcost.report.collectives_picture import ASCII, UNICODE, before_after
from meshcost.report.collectives_uses import TRAPS, USES
from meshcost.report.notation import written
from meshcost.symbols import S, g, n

WIDTH = 80
PAGES = [*OPERATIONS, *OTHERS]
#: Those that move data, and so have a picture.
MOVING = [op for op in PAGES if op != "barrier"]
every_operation = pytest.mark.parametrize("op", OPERATIONS)
every_page = pytest.mark.parametrize("op", PAGES)
every_picture = pytest.mark.parametrize("op", MOVING)


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
What it costs between 4 ranks on 2 nodes of 2
  algorithm              formula                  n = 4   n → ∞  times the least
  ──────────────────────────────────────────────────────────────────────────────
  ring (default)
    Each rank takes from the rank before it and gives to the one after it, until
    all has been everywhere.
    rounds               2*n - 2                  6       ∞      3
    sent and received    2*S*(n - 1)/n            1.5 S   2 S    1 for any n
    sent by all ranks    2*S*(n - 1)              6 S     ∞
    of it between nodes  counted                  3 S
    added up             S*(n - 1)/n              0.75 S  S
    Source: Patarasuk and Yuan 2009; MPICH source comments, as in Thakur,
    Rabenseifner and Gropp 2005
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

HIERARCHICAL = """\
  hierarchical
    Rings on two levels: a reduce-scatter inside each node, an all-reduce
    between equal places of all nodes, an all-gather inside.
    rounds               2*g + 2*n/g - 4         8        ∞      2.667
    sent and received    2*S*(n - 1)/n           1.75 S   2 S    1 for any n
    of it in the node    2*S*(g - 1)/g           S        S
    to other nodes       2*S*(n - g)/(g*n)       0.75 S   S
    sent by all ranks    2*S*(n - 1)             14 S     ∞
    of it between nodes  counted                 6 S
    added up             S*(n - 1)/n             0.875 S  S
"""

OVERVIEW_ROWS = {
    "send_recv": ["A0 A1 A2 → A0 A1 A2", ".  .  .  → A0 A1 A2", ".  .  .  → .  .  ."],
    "broadcast": ["A0 A1 A2 → A0 A1 A2", ".  .  .  → A0 A1 A2", ".  .  .  → A0 A1 A2"],
    "reduce": ["A0 A1 A2 → Σ0 Σ1 Σ2", "B0 B1 B2 → .  .  .", "C0 C1 C2 → .  .  ."],
    "all_reduce": ["A0 A1 A2 → Σ0 Σ1 Σ2", "B0 B1 B2 → Σ0 Σ1 Σ2", "C0 C1 C2 → Σ0 Σ1 Σ2"],
    "reduce_scatter": ["A0 A1 A2 → Σ0 .  .", "B0 B1 B2 → .  Σ1 .", "C0 C1 C2 → .  .  Σ2"],
    "all_gather": ["A0 .  .  → A0 B1 C2", ".  B1 .  → A0 B1 C2", ".  .  C2 → A0 B1 C2"],
    "all_to_all": ["A0 A1 A2 → A0 B0 C0", "B0 B1 B2 → A1 B1 C1", "C0 C1 C2 → A2 B2 C2"],
}
#: What the busiest rank sends by default, and comes to for many ranks.
OVERVIEW_SENT = {
    "send_recv": ["S", "direct"],
    "broadcast": ["S*⌈log2 n⌉", "tree", "→ ∞"],
    "reduce": ["S", "tree"],
    "all_reduce": ["2*S*(n - 1)/n", "ring", "→ 2 S"],
    "reduce_scatter": ["S*(n - 1)/n", "ring", "→ S"],
    "all_gather": ["S*(n - 1)/n", "ring", "→ S"],
    "all_to_all": ["S*(n - 1)/n", "pairwise", "→ S"],
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
        row = lines[start : start + 3]
        assert [line[picture].strip() for line in row] == OVERVIEW_ROWS[op]
        assert [line[sent].strip() for line in row if line[sent].strip()] == OVERVIEW_SENT[op]


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


@every_picture
def test_no_row_of_a_picture_is_broken_at_80_columns(op: str):
    for ranks in (2, 4, 5, 9, 16):
        lines = [flat(line) for line in shown(page(op, ranks)).splitlines()]
        stacked = next(line for line in lines if line.startswith("before")) == "before:"
        for rank, row in enumerate(as_dict(op, ranks)["before"]):
            first = next(line for line in lines if line.startswith(f"rank {rank} {row}"))
            assert len(first.split()) == (2 + ranks if stacked else 3 + 2 * ranks)


@every_picture
@pytest.mark.parametrize("width", [58, 40])
def test_a_picture_is_whole_on_a_narrow_page_or_says_what_it_takes(op: str, width: int):
    """Below each other, sums in short, or one line in its place: no row is broken."""
    for ranks in (2, 4, 9, 16):
        lines, how = before_after(operation(op), ranks, UNICODE, width)
        assert max(map(len, lines)) <= width
        rows = [line.split() for line in lines if line.startswith("rank ")]
        if rows:
            assert [row[1] for row in rows] == [str(at % ranks) for at in range(len(rows))]
            assert {len(row) for row in rows} <= {2 + ranks, 3 + 2 * ranks}
            assert ("A0 + B0" in how) == any("Σ0" in row for row in rows)
        else:
            ((*_, more, _, _),) = (line.split() for line in lines)
            enough, less = (
                before_after(operation(op), ranks, UNICODE, width + int(more) - x) for x in (0, 1)
            )
            assert len(enough[0]) > 2 * ranks
            assert less[0] == ["Not drawn: it takes 1 column more."]


def test_a_page_that_is_too_narrow_for_its_picture_says_so():
    assert "\n  Not drawn: it takes 14 columns more.\n" in shown(page("all_gather", 16), width=60)


@every_picture
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
    text = shown(page(op, 8), width=400, encoding="ascii")
    for name, algorithm in ALGORITHMS.items():
        able = op in algorithm.forms or ("send" in algorithm.forms and op == "send_recv")
        assert able == any(line.split()[:1] == [name] for line in text.splitlines())
        forms = algorithm.on_nodes(g) if isinstance(algorithm, OnNodes) else algorithm.forms
        for form in (forms[op] for _ in range(able and op != "send_recv")):
            assert all(written(x, ASCII) in text for x in (form.sent, form.total, form.rounds) if x != 0)
            assert algorithm.how in text


@every_page
def test_a_page_explains_each_sign_and_no_other(op: str):
    """Whatever a person may not know is said where it is used: a barrier has no payload."""
    text = flat(shown(page(op, 6), width=300, encoding="ascii"))
    table = text.split("What it costs")[1].split("Rounds are compared")[0]
    for sign, meaning in {
        " S ": "S is the whole logical buffer",
        "g + ": "g: ranks in one node, here 3",
        "ones_below(n)": f"ones_below(n): {MEANINGS['ones_below']}.",
        "Min(1, n - 2**floor(log2 n))": "Min(1, n - 2**floor(log2 n)): 0 if n is a power of two",
    }.items():
        assert (sign in table) == (meaning in text), sign
    assert not any(name in text for name in ("log2_ceiling", "power2_floor"))
    costs = text.split("What it costs")[1].split("As Gloo")[0]
    for sign, name in {"ceil(": "ceiling", "floor(": "floor", "Min(": "Min", "Max(": "Max"}.items():
        meanings = [f"{sign}{signs}): {MEANINGS[name]}." for signs in ("a", "a, b")]
        defined = [meaning for meaning in meanings if meaning in costs]
        assert sign in costs.replace(*defined, "") if defined else sign not in costs, sign
    assert ("n - 1 rounds, the last 7 later" in text) == ("n + 6" in text)


def test_nodes_are_as_asked_for():
    assert HIERARCHICAL in shown(page("all_reduce", 8, 2)) + "\n"
    flat_ring, two_levels = (as_dict("all_reduce", 8, 2)["algorithms"][x] for x in ("ring", "hierarchical"))
    assert [x["all_between_nodes"]["exact"] for x in (flat_ring, two_levels)] == ["7", "6"]
    assert "between 8 ranks on one node" in shown(page("all_reduce", 8, 8))
    assert "between 5 ranks, each on a node of its own" in shown(page("all_reduce", 5))
    for nodes in (3, 0, -1, 16):
        with pytest.raises(
            MeshcostError, match=f"8 ranks do not fill nodes of {nodes}: choose from 1, 2, 4, 8"
        ):
            page("all_reduce", 8, nodes)


@every_page
@pytest.mark.parametrize(("ranks", "per_node"), [(4, 2), (12, 3), (16, 8)])
def test_bytes_between_nodes_are_those_of_the_schedule_and_of_the_form(op: str, ranks: int, per_node: int):
    for name, cost in as_dict(op, ranks, per_node)["algorithms"].items():
        counted = cost["all_between_nodes"]
        assert (counted is None) == (ALGORITHMS[name].switch or op == "send_recv")
        if isinstance(ALGORITHMS[name], OnNodes):
            inside, between = (Fraction(cost[side]["exact"]) for side in ("inside", "between"))
            assert inside + between == Fraction(cost["sent"]["exact"])
            assert ranks * between == Fraction(counted["exact"])


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
    assert (
        "Ranks differ: rank 0 sends 2 S and gets 0; ranks 1, 3 send 0 and get S; rank 2 sends S and gets S."
        in text
    )
    assert "Ranks differ" not in flat(shown(page("all_to_all"), width=200)).split("rail")[0]


def test_an_algorithm_that_knows_nodes_stands_on_those_that_its_ranks_fill():
    rounds = as_dict("all_reduce", 12)["algorithms"]["hierarchical"]["rounds"]
    assert rounds["exact"] == "12"  # 2 nodes of 6: 2 * 5 inside and 2 * 1 between


@every_page
def test_a_page_says_what_gloo_does(op: str):
    text = flat(shown(page(op), width=300))
    assert HOW[op][0].upper() + HOW[op][1:] in text
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
            values = {S: 1, n: ranks, g: data["ranks_per_node"]}
            assert str(value(parse(cost[side]["formula"]), values)) == cost[side]["exact"]
        algorithm = ALGORITHMS[name]
        forms = algorithm.on_nodes(g) if isinstance(algorithm, OnNodes) else algorithm.forms
        assert cost["sent"]["formula"] == pretty(forms[operation(op).calls[0]].sent)
        assert cost["received"]["formula"] == pretty(forms[operation(op).calls[-1]].received)
        assert cost["to_bound"]["unit"] == "1"


@every_page
def test_the_data_say_what_each_function_in_their_formulas_means(op: str):
    data = as_dict(op, 6)
    functions = data.pop("functions")
    text = json.dumps(data)
    assert functions.items() <= MEANINGS.items()
    assert {name for name in {*COUNTS, *MEANINGS} if re.search(rf"\b{name}\(", text)} == set(functions)


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
