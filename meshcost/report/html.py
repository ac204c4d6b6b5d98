"""The bill in a notebook: one self-contained piece of HTML, readable on light and on dark pages."""

from collections.abc import Iterator
from html import escape
from itertools import groupby

from meshcost.event import BETWEEN, INSIDE, Totals
from meshcost.ledger import Ledger
from meshcost.report import words
from meshcost.report.bill import Bill, Line
from meshcost.report.terminal import header
from meshcost.report.words import UNICODE, size

_STYLE = """
.meshcost{font:13px/1.45 system-ui,sans-serif;color:inherit}
.meshcost table{border-collapse:collapse;margin:.6em 0;font-variant-numeric:tabular-nums}
.meshcost th,.meshcost td{padding:.15em .7em;text-align:left;vertical-align:top;background:none;border:0}
.meshcost thead th{border-bottom:1px solid rgba(128,128,128,.6);font-weight:600}
.meshcost .n{text-align:right;white-space:nowrap}
.meshcost .s td{font-weight:600;border-top:1px solid rgba(128,128,128,.35);padding-top:.4em}
.meshcost tfoot td{font-weight:600;border-top:1px solid rgba(128,128,128,.6)}
.meshcost .bar{display:flex;width:22em;height:.8em}
.meshcost .i{background:#3a9a5b}.meshcost .b{background:#d9932b}
.meshcost .q{opacity:.7}
.meshcost .k{display:inline-block;width:.8em;height:.8em}
"""


def bill(ledger: Ledger) -> str:
    """Show a whole ledger as HTML: who and where, a bar for each strategy, and every event; exact bytes on hover."""
    shown = Bill(ledger)
    return (
        f'<div class="meshcost"><style>{_STYLE}</style>{_header(shown)}{_bars(shown)}'
        f"<table>{_HEADINGS}<tbody>{''.join(_body(shown))}</tbody><tfoot>{_foot(shown)}</tfoot></table></div>"
    )


def _header(shown: Bill) -> str:
    first, *rest = (line.plain for line in header(shown, UNICODE))
    return f"<div><b>{escape(first)}</b></div>" + "".join(f"<div>{escape(line)}</div>" for line in rest)


def _bars(shown: Bill) -> str:
    groups, totals = shown.groups("strategy"), shown.totals
    if not totals.sent_bytes:
        return ""
    most = max(sums.sent_bytes for sums in groups.values())
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{_bar(sums, most)}</td>{_number(sums.sent_bytes)}"
        f'<td class="n">{escape(words.share(sums.sent_bytes, totals.sent_bytes))}</td></tr>'
        for name, sums in groups.items()
    )
    key = (
        f'<div class="q"><span class="k i"></span> {INSIDE} {size(totals.intra_node_bytes)} '
        f'<span class="k b"></span> {BETWEEN} {size(totals.inter_node_bytes)}</div>'
    )
    return f"<div>One step, {escape(shown.payer)}:</div><table>{rows}</table>{key}"


def _bar(sums: Totals, most: int) -> str:
    inside, between = sums.sent_bytes - sums.inter_node_bytes, sums.inter_node_bytes
    parts = "".join(
        f'<span class="{kind}" style="width:{100 * part / most:.2f}%"></span>'
        for kind, part in (("i", inside), ("b", between))
        if part
    )
    return f'<div class="bar">{parts}</div>'


_COLUMNS = ("#", "operation", "on", "stage", "phase", "why", "dtype", "as")
_NUMBERS = ("calls", "payload", "sent", "inside", "between")
_HEADINGS = (
    "<thead><tr>"
    + "".join(f"<th>{title}</th>" for title in _COLUMNS)
    + "".join(f'<th class="n">{title}</th>' for title in _NUMBERS)
    + "</tr></thead>"
)


def _body(shown: Bill) -> Iterator[str]:
    paid = shown.groups("strategy")
    for strategy, lines in groupby(shown.lines, key=lambda line: line.event.strategy):
        sums = paid.get(strategy, Totals())
        yield f'<tr class="s"><td colspan="{len(_COLUMNS)}">{escape(strategy)}</td>{_figures(sums, None)}</tr>'
        for line in lines:
            yield f"<tr>{_cells(shown, line)}{_figures(line.totals, line.event.payload_bytes)}</tr>"


def _cells(shown: Bill, line: Line) -> str:
    event = line.event
    texts = (
        str(line.number),
        event.op,
        words.group(event, shown.ledger.mesh, UNICODE),
        words.runs(event.stages),
        event.phase,
        event.why,
        event.dtype,
        event.priced.algorithm,
    )
    return "".join(f"<td>{escape(text)}</td>" for text in texts)


def _figures(totals: Totals, payload: int | None) -> str:
    paid = (totals.sent_bytes, totals.intra_node_bytes, totals.inter_node_bytes)
    first = '<td class="n"></td>' if payload is None else _number(payload)
    return f'<td class="n">{totals.calls:,}</td>{first}' + "".join(map(_number, paid))


def _number(count: int) -> str:
    return f'<td class="n" title="{count:,} B">{escape(size(count))}</td>'


def _foot(shown: Bill) -> str:
    label = f'<td colspan="{len(_COLUMNS)}">{escape(shown.payer)}</td>'
    return f"<tr>{label}{_figures(shown.totals, None)}</tr>"
