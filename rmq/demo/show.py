"""Runs the demo: workers, player, live view, and the checks at the end."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.live import Live

from rmq import DeadFilter, RmqClient
from rmq.demo import report
from rmq.demo.crew import Crew
from rmq.demo.gallery import Gallery
from rmq.demo.jobs import CLOSE_AFTER_MIN, MERGE_WINDOW_MIN, TOPICS, plan, takings_of
from rmq.demo.orders import OrderLine, read_orders
from rmq.demo.play import Pace, Player, redis_clock
from rmq.demo.summary import Account, Run
from rmq.errors import InvalidValueError, RmqError

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
    gallery = None if pictures is None else Gallery(pictures)
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
        console.print(report.summary(finished))
        if pictures is None:
            console.print("\nReal pictures: pip install 'rmq[demo]', then rmq demo --pictures FOLDER.", style="dim")
        console.print("\nOn a Redis of your own: rmq demo --url redis://localhost, then rmq stats.", style="dim")
        console.print("How it works: docs/guide/demo.md. What RMQ is for: README.md.", style="dim")
    return finished.exit_code


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
            console.print(report.opening(orders, seconds, client.shown_url), soft_wrap=True)
            crew.wait_ready()
            player = Player(client, day, pace, gallery and gallery.prices)
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
                live.update(report.live_view(*progress), refresh=True)
            elif time.monotonic() >= next_line_s:
                next_line_s = time.monotonic() + _LINE_EVERY_S
                console.print(report.live_line(*progress), soft_wrap=True)
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
