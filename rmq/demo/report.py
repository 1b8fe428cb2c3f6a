"""Output of the demo: a live table, or lines without a terminal, and the summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby, islice
from string import capwords

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rmq import DeadMessage
from rmq.demo.crew import WORKERS
from rmq.demo.drawn import Drawn
from rmq.demo.jobs import TAKINGS, Tier, parts_of
from rmq.demo.orders import OrderLine
from rmq.demo.summary import Account, Run, total

_LIVE = {
    "sent": "accepted", "merged": "merged", "backlog": "backlog", "due": "due", "in\nflight": "in_flight",
    "waiting": "waiting", "delivered": "delivered", "acked": "acked", "dead": "dead",
}  # fmt: skip
_STYLES = {"waiting": "yellow", "dead": "red"}
_WIDEST_FIGURE = len("1,404")
_CARDS, _CARD_WIDTH = 3, 25
_DEAD_SHOWN = 2
"""Number of dead letters shown per topic."""


def opening(orders: Sequence[OrderLine], seconds: float, url: str) -> RenderableType:
    """Return the text that is printed before the replay."""
    return Group(
        Text(f"A day of a shop, {orders[0].at:%Y-%m-%d}, in {seconds:g} seconds", "bold"),
        "Each new price of an item has its picture redrawn once an hour (price-picture),",
        "and those for the customers who bought it, larger customers first",
        "(customer-picture). Orders close after half an hour unless they are paid",
        "(close-order). What each customer spends is summed while it waits (takings).",
        f"Some jobs fail. {WORKERS} worker processes, and Redis at",
        Text(url, "dim", overflow="fold"),
        "",
    )


def live_view(now: datetime, lines: int, all_lines: int, accounts: Sequence[Account]) -> RenderableType:
    """Return the table and progress bar during the replay."""
    head = Table.grid(padding=(0, 2, 0, 0))
    state = f"{lines:,} of {all_lines:,} order lines" if lines < all_lines else "all sent; finishing"
    head.add_row(Text(f"{now:%a %d %b %Y  %H:%M}", "bold"), ProgressBar(all_lines, lines, width=20), state)
    table = _table("topic", *_LIVE)
    for account in accounts:
        figures = {name: getattr(account, name) for name in _LIVE.values()}
        cells = [Text(f"{each:,}", _STYLES.get(name, "") if each else "dim") for name, each in figures.items()]
        table.add_row(_short(account.topic), *cells)
    return Group(head, "", table)


def live_line(now: datetime, lines: int, all_lines: int, accounts: Sequence[Account]) -> str:
    """Return the progress as one line."""
    sum_ = total(accounts)
    return (
        f"{now:%H:%M}  {lines:,} of {all_lines:,} lines; sent {sum_.accepted:,}, merged {sum_.merged:,}, "
        f"backlog {sum_.backlog:,}, waiting {sum_.waiting}, acked {sum_.acked:,}, dead {sum_.dead}"
    )


def summary(run: Run) -> RenderableType:
    """Return the summary that is printed at the end of a run."""
    happened = _table("topic", "sent", "merged", "delivered", "retried", "cancelled", "p50 late", "p99 late")
    sums = _table("topic", "accepted", "- merged", "= acked", "+ dead", "+ cancelled", "left over", "accounts")
    for account in run.accounts:
        late, topic = run.lateness(account.topic), _short(account.topic)
        counts = _numbers(account.accepted, account.merged, account.delivered, account.retried, account.cancelled)
        happened.add_row(topic, *counts, f"{late.p50_ms:,} ms", f"{late.p99_ms:,} ms")
        right = Text("right", "green") if not account.missing else Text(f"{account.missing:+,}", "bold red")
        counts = _numbers(
            account.accepted, account.merged, account.acked, account.dead, account.cancelled, account.left
        )
        sums.add_row(topic, *counts, right)
    tiers = _table("larger customers first", "pictures", "mean late", "p99 late")
    for tier in reversed(Tier):
        late = run.lateness_of_tier(tier)
        tiers.add_row(f"  {tier.name.lower()}", f"{late.count:,}", f"{late.mean_ms:,} ms", f"{late.p99_ms:,} ms")
    summed = _table("summed while it waits", "amounts", "deliveries", "booked", "by the orders")
    for account in run.accounts:
        if account.topic == TAKINGS.name:
            pounds = (f"GBP {sum(pence.values()) / 100:,.2f}" for pence in (run.booked, run.takings))
            summed.add_row(f"  {_short(account.topic)}", *_numbers(account.accepted, account.delivered), *pounds)
    checks = Table.grid(padding=(0, 2, 0, 0))
    for check in run.checks():
        checks.add_row(Text("kept", "green") if check.kept else Text("BROKEN", "bold red"), check.name, check.words)
    sum_ = total(run.accounts)
    played = (
        f"{run.lines:,} order lines: {sum_.accepted:,} messages, {sum_.delivered:,} deliveries "
        f"in {run.elapsed_s:.1f} s ({run.rate_per_s:,.0f}/s)."
    )
    verdict = Text("Nothing was lost, and nothing is left.", "bold green")
    if run.exit_code:
        verdict = Text("Some checks failed: see above.", "bold red")
    return Group(
        "",
        happened,
        "",
        sums,
        "",
        tiers,
        "",
        summed,
        *_pictures(run),
        *_dead(run.dead),
        "",
        checks,
        "",
        played,
        verdict,
    )


def _pictures(run: Run) -> list[RenderableType]:
    """Return figures and samples of the pictures; empty for a run without pictures."""
    if run.drawn is None:
        return []
    saved = _table("real pictures", "asked for", "drawn", "saved", "one takes", "saved time")
    for saving in run.savings():
        times = f"{saving.render_ms:,.1f} ms", f"{saving.saved_s:,.1f} s"
        saved.add_row(f"  {_short(saving.topic)}", *_numbers(saving.asked, saving.drawn, saving.saved), *times)
    shown = Table.grid(padding=(0, 1, 0, 0))
    shown.add_row(*(_card(run.drawn, content) for content in run.drawn.most_asked(run.records, _CARDS)))
    where = Text.assemble("Contact sheet: ", (str(run.drawn.sheet), "bold"), overflow="fold")
    return ["", saved, "", shown, where]


def _card(drawn: Drawn, content: str) -> RenderableType:
    item = parts_of(content)[0]
    price = f"GBP {drawn.prices[content] / 100:,.2f}"
    name = Text(capwords(drawn.names.get(item, item)), "dim", no_wrap=True, overflow="crop")
    words = f"after {drawn.asked[content]} new prices"
    return Panel(Group(Text(price, "bold", justify="center"), name, words), width=_CARD_WIDTH)


def _short(topic: str) -> str:
    """Return a topic's name without the prefix `demo.`."""
    return topic.removeprefix("demo.")


def _numbers(*figures: int) -> Iterable[str]:
    return (f"{figure:,}" for figure in figures)


def _table(title: str, *figures: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0, collapse_padding=True, header_style="bold")
    table.add_column(title, vertical="bottom", no_wrap=True)
    for name in figures:  # a minimum width keeps columns in place
        table.add_column(name, justify="right", vertical="bottom", no_wrap=True, min_width=_WIDEST_FIGURE)
    return table


def _dead(dead: Sequence[DeadMessage]) -> list[RenderableType]:
    if not dead:
        return []
    shown = [each for _, group in groupby(dead, key=lambda each: each.topic) for each in islice(group, _DEAD_SHOWN)]
    lines: list[RenderableType] = ["", Text(f"Dead letters, {len(shown)} of {len(dead)}:", "bold")]
    for message in shown:
        reason = f"{message.error_type}: {message.error_message}"
        # cropped without an ellipsis, which terminals without UTF-8 cannot show
        lines.append(Text(f"  {_short(message.topic)}: {reason}", no_wrap=True, overflow="crop"))
    return lines
