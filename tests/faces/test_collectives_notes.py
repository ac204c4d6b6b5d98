"""What a teaching page says beside its tables: footnotes, the rounds of the ring, and what Gloo sends where."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import pytest

from meshcost.collectives import ALGORITHMS
from meshcost.collectives.gloo import SENT, traffic, turning_point
from meshcost.collectives.operations import OPERATIONS, OTHERS
from meshcost.formula import value
from meshcost.job import Job, analyze
from meshcost.report.collectives import as_dict, page
from meshcost.symbols import S, n

Shown = Callable[..., str]

RING = """\
The ring, round by round, between 4 ranks
          before        round 1
  rank 0  A0 A1 A2 A3 → A0    A1    A2+D2 .
  rank 1  B0 B1 B2 B3 → .     B1    B2    A3+B3
  rank 2  C0 C1 C2 C3 → B0+C0 .     C2    C3
  rank 3  D0 D1 D2 D3 → D0    C1+D1 .     D3

          round 2                               round 3
  rank 0  A0       A1+C1+D1 .        .        → Σ0 .  .  .
  rank 1  .        B1       A2+B2+D2 .        → .  Σ1 .  .
  rank 2  .        .        C2       A3+B3+C3 → .  .  Σ2 .
  rank 3  B0+C0+D0 .        .        D3       → .  .  .  Σ3

  A0 is chunk 0 of rank 0's data, B0 that of rank 1, and so on; Σ0 = A0 + B0 +
  C0 + D0; . is nothing, or nothing that the rank still needs.
"""
MIB = 2**20
PAGES = [*OPERATIONS, *OTHERS]
#: Turns of a ring.
TURNS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


def flat(text: str) -> str:
    """Undo the wrapping of lines."""
    return " ".join(text.split())


def test_a_student_sees_the_rounds_of_the_ring(shown: Shown):
    assert RING in shown(page("reduce_scatter"), width=80)
    assert "round by round, between 3 ranks\n" in shown(page("all_gather", 3), width=80)
    assert "round by round, between 4 ranks\n" in shown(page("all_reduce", 16), width=80)


@pytest.mark.parametrize("ranks", [2, 3, 4, 9])
@pytest.mark.parametrize("op", PAGES)
def test_a_ring_is_shown_from_what_is_there_before_to_what_the_operation_promises(op: str, ranks: int):
    """From one round to the next a rank gets one chunk at most: what it has beyond that, it had."""
    data = as_dict(op, ranks)
    if op not in TURNS:
        assert "ring_rounds" not in data
        return
    here = as_dict(op, min(ranks, 4))
    states = [[row.split() for row in state] for state in data["ring_rounds"]]
    assert [[" ".join(row) for row in states[end]] for end in (0, -1)] == [here["before"], here["after"]]
    assert len(states) == 1 + TURNS[op] * (min(ranks, 4) - 1)
    for before, after in pairwise(states):
        for old, new in zip(before, after, strict=True):
            assert len([x for x, y in zip(old, new, strict=True) if y not in (x, ".")]) == 1


@pytest.mark.parametrize("nodes", [2, 6])
@pytest.mark.parametrize("op", PAGES)
def test_a_footnote_stands_where_the_page_needs_it_and_nowhere_else(op: str, nodes: int, shown: Shown):
    text = flat(shown(page(op, 6, 6 // nodes), width=300, encoding="ascii"))
    costs = text.partition("What it costs")[2].partition("As Gloo")[0]
    table, _, rounds = costs.partition("Rounds are compared")
    data, kinds = as_dict(op, 6, 6 // nodes), [ALGORITHMS[name] for name in as_dict(op, 6)["algorithms"]]
    figures = [
        x
        for cost in data["algorithms"].values()
        for x in cost.values()
        if isinstance(x, dict) and "many_ranks" in x
    ]
    for note, is_needed in {
        "Sent, received, added up: by": " added up S" in table,
        "Below 1 a switch adds up": any(Fraction(row["bytes_ratio"]) < 1 for row in data["optimality"]),
        "Of it between nodes: what": "of it between nodes counted" in table,
        "log(k+1) n": any(kind.ports is not None and not kind.switch for kind in kinds),
        "all messages at once take 1": any(kind.ports is None and not kind.switch for kind in kinds),
        "a switch takes 2": any(kind.switch for kind in kinds),
        "ever more ranks; - where": any(x["many_ranks"] is None for x in figures),
        "On one node only: these figures are for 6 ranks on one": any(kind.one_node for kind in kinds),
    }.items():
        assert (note in costs) == is_needed, note
    assert rounds


def test_what_a_switch_of_one_node_does_is_no_note_on_one_node(shown: Shown):
    assert "On one node only" in shown(page("all_reduce", 4, 2), width=80)
    assert "On one node only" not in shown(page("all_reduce", 4, 4), width=80)


def test_gradients_go_in_one_call_or_in_buckets_as_the_page_says(shown: Shown):
    job = {"model": "gpt2", "parallel": {"data": 2}, "batch": {"sequence": 8, "global_batch": 2}}
    textbook, torch = (
        sum(event.calls for event in analyze(Job(**job, framework=name)).filter(strategy="ddp"))
        for name in ("textbook", "torch")
    )
    assert textbook == 1 < torch
    said = "all gradients: one call for all weights (textbook), or one for each bucket (torch), because"
    assert said in flat(shown(page("all_reduce"), width=300))


def test_the_picture_of_a_message_names_only_the_data_that_it_shows(shown: Shown):
    assert "A0 is chunk 0 of rank 0's data; . is nothing." in shown(page("send_recv"), width=80)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_gloo_sends_more_of_a_large_reduce_and_the_page_says_from_where(ranks: int, shown: Shown):
    text = flat(shown(page("reduce", ranks), width=300))
    here = 2 * ranks
    assert f"sends S up to S = 2*MiB*n ({here} MiB here), above that S + S/n - 2*MiB, and each" in text
    assert as_dict("reduce", ranks)["gloo"]["sent"]["up_to_bytes"] == here * MIB
    turn = turning_point(SENT["reduce"])
    assert turn is not None
    for size, form in ((here // 2, turn[1]), (here, turn[1]), (here, turn[2]), (4 * here, turn[2])):
        busiest = max(
            traffic("reduce", at, ranks=ranks, payload_bytes=size * MIB).sent_payload for at in range(ranks)
        )
        assert value(form, {S: size * MIB, n: ranks}) == busiest
