"""The bill as people see it: golden pages of fixed width, and what must hold at every width."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from meshcost.errors import LedgerError
from meshcost.event import Totals
from meshcost.ledger import Ledger
from meshcost.listing import listed
from meshcost.report import words
from meshcost.report.bill import Bill
from meshcost.report.grid import Column, Grid
from meshcost.report.html import bill as html
from meshcost.report.terminal import Shown, bill

GOLDEN = Path(__file__).parent / "golden"
Draw = Callable[..., str]
every_job = pytest.mark.parametrize("name", ["dense", "experts", "uneven"])


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["dense", "experts", "alone"])
def test_a_bill_looks_as_it_did(
    ledgers: dict[str, Ledger], shown: Draw, name: str, width: int, encoding: str
):
    page = shown(bill(ledgers[name]), width, encoding)
    path = GOLDEN / f"{name}-{width}-{encoding}.txt"
    if os.environ.get("REDRAW"):  # then look at the difference with your own eyes
        path.write_text(page, encoding="utf-8")
    assert page == path.read_text(encoding="utf-8")


@every_job
@pytest.mark.parametrize("exact", [False, True])
def test_no_width_breaks_a_number_or_leaves_the_page(
    ledgers: dict[str, Ledger], shown: Draw, name: str, exact: bool
):
    ledger = ledgers[name]
    for width in range(72, 170, 7):
        page = shown(bill(ledger, exact=exact), width)
        assert max(map(len, page.splitlines())) <= width
        rows = [
            row for row in page.splitlines() if row[:1].isdigit() and not row.startswith(("8 GPUs", "4 s"))
        ]
        for line in Bill(ledger).lines:
            (row,) = [
                row for row in rows if row.split()[0] == str(line.number) and row.split()[1] == line.event.op
            ]
            assert words.size(line.totals.sent_bytes, exact=exact) in row
            assert f"{line.totals.calls:,}" in row.split()


def test_a_wide_page_has_every_column(ledgers: dict[str, Ledger], shown: Draw):
    page = shown(bill(ledgers["dense"]), 160)
    heading = next(row for row in page.splitlines() if row.startswith("#")).split()
    assert " ".join(heading) == "# operation on stage phase why dtype as calls payload sent inside between"


@every_job
def test_whose_totals_a_bill_shows(ledgers: dict[str, Ledger], name: str):
    ledger = ledgers[name]
    whole = Bill(ledger)
    assert whole.totals == ledger.totals
    assert len(whole.lines) == len(ledger)
    for stage in range(ledger.mesh.stages):
        part = Bill(ledger, stage=stage)
        assert part.totals == ledger.by_stage[stage]
        assert total(line.totals for line in part.lines) == part.totals
    for rank in range(ledger.mesh.world_size):
        mine = Bill(ledger, rank=rank)
        assert mine.totals == ledger.rank_totals(rank)
        assert total(line.totals for line in mine.lines) == mine.totals


def total(many: object) -> Totals:
    result = Totals()
    for one in many:  # type: ignore[attr-defined]
        result += one
    return result


@every_job
@pytest.mark.parametrize("by", ["strategy", "op", "phase", "axis", "algorithm"])
def test_groups_add_up_to_the_totals(ledgers: dict[str, Ledger], name: str, by: str):
    for shown in (Bill(ledgers[name]), Bill(ledgers[name], stage=0), Bill(ledgers[name], rank=1)):
        groups = shown.groups(by)
        assert total(groups.values()) == shown.totals
        if by != "phase":
            sent = [max(x.sent_bytes, x.received_bytes) for x in groups.values()]
            assert sent == sorted(sent, reverse=True)
    assert Bill(ledgers[name]).groups(by) == ledgers[name].group(by)


@every_job
def test_links_add_up_to_what_is_sent(ledgers: dict[str, Ledger], name: str):
    for shown in (Bill(ledgers[name]), Bill(ledgers[name], rank=0)):
        assert sum(x.sent_bytes for x in shown.groups("link").values()) == shown.totals.sent_bytes
    assert ledgers[name].group("link") == Bill(ledgers[name]).groups("link")


def test_a_filter_for_what_does_not_exist_is_refused(ledgers: dict[str, Ledger]):
    for fields, legal in (({"op": "allgather"}, "all_gather"), ({"phase": "back"}, "backward")):
        with pytest.raises(LedgerError, match=f"is not known: choose from .*{legal}"):
            ledgers["dense"].filter(**fields)


def test_ranks_that_send_unequal_amounts_are_told_apart(ledgers: dict[str, Ledger]):
    ledger = ledgers["uneven"]
    sent = [Bill(ledger, rank=rank).totals.sent_bytes for rank in range(5)]
    assert len(set(sent)) > 1
    assert max(sent) == ledger.totals.sent_bytes


def test_stages_and_ranks_that_do_not_exist_are_refused(ledgers: dict[str, Ledger]):
    ledger = ledgers["dense"]
    for wrong in ({"stage": 2}, {"stage": -1}, {"rank": 8}, {"rank": -1}, {"rank": 0, "stage": 1}):
        with pytest.raises(LedgerError):
            Bill(ledger, **wrong)


@every_job
def test_events_have_names_of_their_own(ledgers: dict[str, Ledger], name: str):
    found = [line.name for line in listed(ledgers[name])]
    assert len(set(found)) == len(found)
    assert sorted([line.event for line in listed(ledgers[name])], key=repr) == sorted(ledgers[name], key=repr)


def test_the_order_of_events_in_a_ledger_does_not_change_the_names(ledgers: dict[str, Ledger]):
    ledger = ledgers["dense"]
    strategies = [line.event.strategy for line in Bill(ledger).lines]
    assert strategies == sorted(strategies, key=strategies.index)  # each strategy in one piece


@pytest.mark.parametrize("by", ["strategy", "op", "phase", "axis", "link", "stage", "algorithm"])
def test_sums_fit_and_show_the_totals(ledgers: dict[str, Ledger], shown: Draw, by: str):
    shape = Shown(Bill(ledgers["dense"]), by)
    for width in (60, 80, 120):
        page = shown(shape, width)
        assert max(map(len, page.splitlines())) <= max(width, 72)
        assert words.size(ledgers["dense"].totals.sent_bytes) in page


def test_a_name_is_not_read_as_markup_or_html(ledgers: dict[str, Ledger], shown: Draw):
    ledger = ledgers["dense"]
    odd = replace(ledger, about={**ledger.about, "model": "[red]<b>&x"})
    assert "[red]<b>&x" in shown(bill(odd), 80)
    assert "[red]&lt;b&gt;&amp;x" in html(odd)
    assert "<b>&x" not in html(odd)


@every_job
def test_html_holds_every_event_and_nothing_from_outside(ledgers: dict[str, Ledger], name: str):
    page = html(ledgers[name])
    assert page == ledgers[name]._repr_html_()
    for event in ledgers[name]:
        assert f"{event.payload_bytes:,} B" in page
    assert page.count("<tr") == page.count("</tr>")
    assert page.count("<td") == page.count("</td>")
    for outside in ("http", "src=", "<script", "@import", "url("):
        assert outside not in page


def test_a_ledger_shows_itself(ledgers: dict[str, Ledger], shown: Draw):
    assert shown(ledgers["dense"], 100) == shown(bill(ledgers["dense"]), 100)


def test_columns_are_dropped_in_their_order_and_sentences_wrapped():
    grid = Grid((Column("n", "right"), Column("text", least=5), Column("extra", drop=1)))
    grid.row("12345", "one two three", "more")
    assert [line.plain for line in grid.fit(40)] == [
        "    n  text           extra",
        "---------------------------",
        "12345  one two three  more",
    ]
    narrow = [line.plain for line in grid.fit(14)]
    assert narrow == [
        "    n text",
        "--------------",
        "12345 one two",
        "      three",
        "Columns left",
        "out: extra (a",
        "wider page has",
        "them).",
    ]
    least = [line.plain for line in grid.fit(3)]
    assert "      three" in least  # numbers stay whole, whatever the width


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), ""),
        ((7,), "7"),
        ((1, 2), "1-2"),
        ((0, 2), "0, 2"),
        ((0, 8, 16), "0-16 step 8"),
        ((3, 2, 1), "3, 2, 1"),
    ],
)
def test_runs_of_numbers(numbers: tuple[int, ...], text: str):
    assert words.runs(numbers) == text
