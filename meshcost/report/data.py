"""The bill as data: JSON, CSV and Markdown. Every number is exact."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshcost.event import CLUSTER, Totals
from meshcost.formula import pretty
from meshcost.ledger import Ledger
from meshcost.report.bill import Bill, Line

#: Columns of the events, as in the JSON of a ledger.
EVENT_COLUMNS = (
    "number", "event", "strategy", "op", "axes", "group_size", "stages", "phase", "why", "dtype", "count", "payload_bytes",
    "sent_bytes", "received_bytes", "intra_node_bytes", "inter_node_bytes", *CLUSTER, "algorithm", "formula_payload",
    "formula_count", "formula_sent",
)  # fmt: skip
_MARKDOWN_COLUMNS = (
    "number", "strategy", "op", "axes", "group_size", "stages", "phase", "why", "count", "payload_bytes", "sent_bytes",
    "intra_node_bytes", "inter_node_bytes",
)  # fmt: skip
_TOTALS = tuple(Totals.__slots__)
_LINK = ("sent_bytes",)

Row = Mapping[str, Any]


def as_dict(bill: Bill, by: str | None = None) -> dict[str, Any]:
    """The bill as JSON values: the whole ledger, that of one stage or rank, or sums ``by`` something.

    ``Ledger.from_dict`` reads the whole ledger back. A part of it says at its top whose it is, and is no ledger.
    """
    if by not in (None, "event"):
        return _sums(bill, str(by))
    if bill.whole:
        times = _seconds_of_events(bill)
        return (replace(bill.ledger, **times) if times else bill.ledger).to_dict()
    own = bill.ledger.at_stage(bill.payer_stage)
    lines = {id(line.event): line for line in bill.lines}
    part = own.to_dict() | _payer(bill) | {"totals": bill.totals.as_dict()} | _seconds_of_events(bill)
    del part["digest"]
    part["events"] = [_paid(row, lines[id(event)]) for event, row in zip(own, part["events"], strict=True)]
    part["totals"] |= {
        f"by_{key}": {name: sums.as_dict() for name, sums in bill.groups(key).items()}
        for key in ("strategy", "op", "phase", "axis", "stage")
    }
    return part


def _paid(row: dict[str, Any], line: Line) -> dict[str, Any]:
    """An event as the one who pays has it: in all calls, and in one."""
    wire = {key: sum for key, sum in line.totals.as_dict().items() if key not in ("calls", "payload_bytes")}
    once = {key: sum // line.totals.calls for key, sum in wire.items()}
    return row | wire | {"number": line.number, "event": line.name, "one_call": row["one_call"] | once}


def _totals(bill: Bill) -> dict[str, int]:
    """What the payer pays, and beside the busiest rank what all ranks together send."""
    return bill.totals.as_dict() | bill.all_together


def _seconds(bill: Bill) -> dict[str, Any]:
    """Seconds of the payer, and of the slowest rank of all, where the links of a cluster are known."""
    if not bill.timed:
        return {}
    found: dict[str, Any] = {
        **bill.timed_on,
        "total": bill.total_seconds,
    }
    if bill.whole:
        slowest = bill.slowest_stage
        found |= {"slowest_stage": slowest, "slowest_total": bill.stage_seconds[slowest or 0]}
    return found


def _seconds_of_events(bill: Bill) -> dict[str, Any]:
    """The same, with the seconds of each event in the order of ``events``."""
    if not bill.timed:
        return {}
    events = bill.ledger if bill.whole else bill.ledger.at_stage(bill.payer_stage)
    return {"seconds": _seconds(bill) | {"events": [bill.seconds(event) for event in events]}}


def _payer(bill: Bill) -> dict[str, int]:
    return {"stage": bill.payer_stage} | ({} if bill.rank is None else {"rank": bill.rank})


def _sums(bill: Bill, by: str) -> dict[str, Any]:
    return {
        "about": dict(bill.ledger.about),
        "world_size": bill.ledger.mesh.world_size,
        "by": by,
        **_payer(bill),
        "rows": group_rows(bill, by),
        "totals": _totals(bill),
        **({"seconds": _seconds(bill)} if bill.timed else {}),
    }


def group_rows(bill: Bill, by: str) -> list[dict[str, Any]]:
    """One row for each group, its name under the key that it is grouped by."""
    shown, cluster, times = _LINK if by == "link" else _TOTALS, bill.together(by), bill.seconds_by(by)
    return [
        {
            by: name,
            **{key: number for key, number in sums.as_dict().items() if key in shown},
            **cluster.get(name, {}),
            **({"seconds": times[name]} if name in times else {}),
        }
        for name, sums in bill.groups(by).items()
    ]


def event_rows(bill: Bill) -> list[dict[str, Any]]:
    """One row for each event, in the order in which bills list them."""
    if not bill.timed:
        return [_event_row(line) for line in bill.lines]
    return [_event_row(line) | {"seconds": bill.seconds(line.event)} for line in bill.lines]


def as_frame(ledger: Ledger, pandas: Any) -> Any:
    """The rows of the events as a DataFrame, with every column also where there is no event."""
    bill = Bill(ledger)
    return pandas.DataFrame(event_rows(bill), columns=list(_event_columns(bill)))


def _event_columns(bill: Bill) -> tuple[str, ...]:
    return (*EVENT_COLUMNS, *(("seconds",) if bill.timed else ()))


def _event_row(line: Line) -> dict[str, Any]:
    event, paid = line.event, line.totals.as_dict()
    values = {
        "number": line.number,
        "event": line.name,
        "axes": " ".join(event.axes),
        "stages": " ".join(map(str, event.stages)),
        "count": event.calls,
        **paid,
        "payload_bytes": event.payload_bytes,
        "algorithm": event.priced.algorithm,
        "formula_payload": pretty(event.payload),
        "formula_count": pretty(event.count),
        "formula_sent": pretty(event.priced.sent),
    }
    return {key: values[key] if key in values else getattr(event, key) for key in EVENT_COLUMNS}


def as_csv(bill: Bill, by: str | None = None) -> str:
    """The events, or sums ``by`` something, as CSV with a header."""
    rows = event_rows(bill) if by in (None, "event") else group_rows(bill, str(by))
    columns = (
        _event_columns(bill) if by in (None, "event") else tuple(rows[0]) if rows else (str(by), *_TOTALS)
    )
    return csv_text(columns, rows)


def csv_text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    """Write rows as CSV.

    >>> csv_text(("a", "b"), [{"a": 1, "b": "x, y"}]).splitlines()
    ['a,b', '1,"x, y"']
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def as_markdown(bill: Bill, by: str | None = None) -> str:
    """The events, or sums ``by`` something, as a Markdown table with the totals in its last row.

    Where the rank that sends most is not the slowest, one more row has the totals of that.
    """
    events = by in (None, "event")
    rows = event_rows(bill) if events else group_rows(bill, str(by))
    timed = ("seconds",) if bill.timed else ()
    columns = (*_MARKDOWN_COLUMNS, *timed) if events else tuple(rows[0]) if rows else (str(by), *_TOTALS)
    table = markdown_text(columns, [{key: row[key] for key in columns} for row in rows])
    if by == "stage" and bill.whole:
        return table
    last: list[tuple[str, Row]] = [(bill.payer, _totals(bill) | {"seconds": bill.total_seconds})]
    slowest = bill.slowest_stage
    if bill.whole and slowest not in (None, bill.payer_stage):
        sums = bill.ledger.by_stage[slowest].as_dict() | {"seconds": bill.stage_seconds[slowest]}
        last.append((f"the slowest rank, of stage {slowest}", sums))
    return table + "".join(_last_row(columns, name, sums, events=events) for name, sums in last)


def _last_row(columns: Sequence[str], name: str, sums: Row, *, events: bool) -> str:
    """The totals of a rank; below events, whose payload is that of one call, without a sum of payloads."""
    row = {**sums, "count": sums["calls"], columns[1 if events else 0]: f"**{name}**"}
    if events:
        row["payload_bytes"] = ""
    return _markdown_row([row.get(key, "") for key in columns])


def markdown_text(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Write rows as a Markdown table; columns of whole numbers are aligned to the right."""
    numeric = {key for key in columns if rows and all(isinstance(row[key], int | float) for row in rows)}
    head = _markdown_row(columns) + _markdown_row(["---:" if key in numeric else "---" for key in columns])
    return head + "".join(_markdown_row([row[key] for key in columns]) for row in rows)


def _markdown_row(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"
