"""Runs the demo: workers, player, live view or lines, and the summary at the end."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from pathlib import Path
from string import capwords
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rmq import DeadFilter, DeadMessage, RmqClient
from rmq.demo.jobs import CLOSE_AFTER_MIN, MERGE_WINDOW_MIN, TAKINGS, TOPICS, Tier, parts_of, plan, takings_of
from rmq.demo.orders import OrderLine, read_orders
from rmq.demo.summary import Account, Drawn, Run, total
from rmq.demo.worker import WORKERS, Crew, Pace, Player, redis_clock
from rmq.errors import InvalidValueError, RmqError

if TYPE_CHECKING:
    from rmq.demo.pictures import Gallery

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
        "Each new price of an item redraws its picture, at most once an hour",
        "(price-picture), and those for the customers who bought it, larger customers",
        "first (customer-picture). Orders close after half an hour unless they are paid",
        "(close-order). The amounts that a customer spends are summed in the backlog (takings).",
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


STUCK_AFTER_S = 20.0
"""Seconds without a send or delivery, in addition to the merge windows, after which the demo gives up."""

_LOOK_EVERY_S = 0.25
_LINE_EVERY_S = 2.0
_INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + signal number, as in shells."""


def run(
    *,
    url: str | None = None,
    seconds: float = 20.0,
    json_output: bool = False,
    console: Console | None = None,
    pictures: Path | None = None,
) -> int:
    """Replay a day of orders, show the progress, and check that nothing was lost.

    Args:
        url: URL of Redis; by default `RMQ_URL`, else a temporary Redis. Topics named `demo.…` are left there.
        seconds: Duration of the replay in seconds, 1 to 3,600.
        json_output: Print only the summary, as one JSON document.
        console: Console for the output; standard output by default.
        pictures: Folder to draw pictures into, with Pillow; `None` draws none.

    Returns:
        The exit code: 0 if all checks passed, 1 if not, 130 after Ctrl-C.

    Raises:
        InvalidValueError: `seconds` is out of range.
        RmqError: Redis or a worker process failed, or pictures cannot be drawn.
    """
    if not 1 <= seconds <= 3_600:
        raise InvalidValueError(f"seconds is {seconds!r}; it must be from 1 to 3,600")
    url = os.environ.get("RMQ_URL", "embedded://") if url is None else url
    gallery = None if pictures is None else _gallery(pictures)
    console = console or Console(highlight=False)
    try:
        finished = _play(url, seconds, Console(quiet=True) if json_output else console, gallery)
    except KeyboardInterrupt:
        print("The demo was stopped.", file=sys.stderr)
        return _INTERRUPTED
    finally:
        if gallery is not None:
            gallery.close()
    if json_output:
        console.file.write(json.dumps(finished.to_json(), indent=2) + "\n")
    else:
        console.print(summary(finished))
        if pictures is None:
            console.print("\nReal pictures: pip install 'rmq[demo]', then rmq demo --pictures FOLDER.", style="dim")
        console.print("\nOn a Redis of your own: rmq demo --url redis://localhost, then rmq stats.", style="dim")
        console.print("How it works: docs/guide/demo.md. What RMQ is for: README.md.", style="dim")
    return finished.exit_code


def _gallery(folder: Path) -> Gallery:
    try:
        from rmq.demo.pictures import Gallery  # imports Pillow, which only pictures need
    except ModuleNotFoundError as error:
        raise RmqError(f"drawing pictures needs the package Pillow ({error}): pip install 'rmq[demo]'") from None
    return Gallery(folder)


def _play(url: str | None, seconds: float, console: Console, gallery: Gallery | None) -> Run:
    """Replay the day, and stop all processes."""
    orders = read_orders()
    day = plan(orders)
    pace = Pace(day[-1].number, seconds)
    with RmqClient(url) as client:
        before = {topic.name: client.inspect(topic).stats() for topic in TOPICS}

        def accounts() -> tuple[Account, ...]:
            return tuple(Account.between(before[each.name], client.inspect(each).stats()) for each in TOPICS)

        began_ms = redis_clock(client)()
        if gallery is not None:
            gallery.open_shop(orders)
        with Crew(client.url, pace.seconds_of(1), gallery and gallery.pictures) as crew:
            console.print(opening(orders, seconds, client.shown_url), soft_wrap=True)
            crew.wait_ready()
            player = Player(client, day, pace, gallery and gallery.prices.write)
            patience_s = STUCK_AFTER_S + pace.seconds_of(max(MERGE_WINDOW_MIN, CLOSE_AFTER_MIN))
            started_s = time.monotonic()
            try:
                player.start()
                _watch(console, orders, player, crew, accounts, patience_s)
            finally:
                player.stop()
            elapsed_s = time.monotonic() - started_s
            records = crew.dismiss()
        mine = DeadFilter(died_after=datetime.fromtimestamp(began_ms / 1000, UTC))
        dead = [message for topic in TOPICS for message in client.dead(topic).list(mine)]
        sent_s, takings = player.last_sent_s, takings_of(day)
        drawn = gallery and gallery.finish(orders, day, records)
        return Run(seconds, elapsed_s, player.lines, accounts(), records, sent_s, dead, takings, drawn)


def _watch(
    console: Console,
    orders: Sequence[OrderLine],
    player: Player,
    crew: Crew,
    accounts: Callable[[], tuple[Account, ...]],
    patience_s: float,
) -> None:
    """Show the progress until no message is left, or there was no progress for `patience_s`."""
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    next_line_s, moved_s, seen = 0.0, time.monotonic(), (0, 0)
    with live or nullcontext():
        while True:
            ended = not player.is_alive()  # before reading the accounts, which do not include later sends
            now = accounts()
            progress = (orders[0].at + timedelta(minutes=player.minute), player.lines, len(orders), now)
            if live is not None:
                live.update(live_view(*progress), refresh=True)
            elif time.monotonic() >= next_line_s:
                next_line_s = time.monotonic() + _LINE_EVERY_S
                console.print(live_line(*progress), soft_wrap=True)
            if player.error is not None:
                raise RmqError(f"the demo could not send: {player.error}") from player.error
            crew.check()
            if ended and not any(account.left for account in now):
                return
            moves = (player.lines, sum(account.delivered for account in now))
            if moves != seen:
                moved_s, seen = time.monotonic(), moves
            elif time.monotonic() > moved_s + patience_s:
                return
            time.sleep(_LOOK_EVERY_S)
