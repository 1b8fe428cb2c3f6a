"""Runs a random history and judges it.

    python -m tests.histories --server alone --minutes 10 --seed 1
    python -m tests.histories --server cluster --minutes 10 --freeze 20
    python -m tests.histories --server alone=/usr/bin/redis-server

Four workers (threads, batches, asyncio, pull) and two senders on a topic of each type, and a fault every few seconds:
scripts flushed, connections cut, servers frozen or killed, workers killed or paused, slots moved. At the end all topics
are drained. The exit code is 1 if anything was lost, early, at once without an excuse, or not accounted for.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from rmq import RmqClient, TopicType
from rmq.errors import RmqError
from tests.histories.faults import Faults, start
from tests.histories.journal import Journal, now_s
from tests.histories.judge import UNOWNED, Rules, counted, judge, summary
from tests.histories.servers import make
from tests.histories.story import read
from tests.histories.topics import GROUP, LEASE_S, topics

DRAIN_S = 120.0


def main() -> int:
    """Run a history; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="alone", help="alone, cluster, alone=PROGRAM or cluster=PROGRAM")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long faults happen")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn by lot")
    parser.add_argument("--freeze", type=float, default=20.0, help="longest freeze of a server, in seconds")
    parser.add_argument("--per-second", type=float, default=200.0, help="messages a second of each of two senders")
    parser.add_argument("--journal", type=Path, help="keep the journal here")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-history-")))
        report = run(options, options.journal or folder / "journal")
    print(json.dumps(report, indent=1))
    print(
        f"{report['sends']:,} sends, {report['runs']:,} handlings, {sum(report['faults'].values())} faults;"
        f" {report['broken']}, unaccounted {report['unaccounted']}"
    )
    return 0 if report["good"] else 1


def run(options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Run a history and return what it shows."""
    chance, journal = random.Random(options.seed), Journal(path)
    journal.clock()
    with ExitStack() as stack:
        servers = make(options.server, journal)
        stack.callback(servers.stop)
        faults = Faults(servers, journal, path, chance, options.freeze)
        stack.callback(faults.kill_all)
        arguments = ("--per-second", options.per_second)
        senders = [start("sender", servers.url, path, chance.randrange(2**31), *arguments) for _ in range(2)]
        for sender in senders:
            stack.callback(sender.kill)
        with RmqClient(servers.url, deadline_s=60) as client:
            end_s = now_s() + 60 * options.minutes
            unaccounted = 0
            while now_s() < end_s:
                time.sleep(chance.uniform(1, 5))
                if said := faults.happen():
                    print(f"{60 * options.minutes - end_s + now_s():7.1f} s  {said}", file=sys.stderr, flush=True)
                with suppress(RmqError):
                    unaccounted = max(unaccounted, *map(abs, _unaccounted(client)))
                if chance.random() < 0.1:
                    _redrive(client)
            for sender in senders:
                assert sender.stdin is not None
                sender.stdin.close()
            codes = [sender.wait(90) for sender in senders]
            left = _drain(client)
            codes += faults.end_workers()
            left |= {f"unaccounted {name}": n for name, n in zip(_names(), _unaccounted(client), strict=True) if n}
            dead = _dead(client)
    streams = [topic.name for topic in topics() if topic.type is TopicType.STREAM]
    verdict = judge(read(path), Rules(LEASE_S, folding=_names(), apart=streams, dead=dead), UNOWNED)
    return {
        "good": not (verdict.violations or left or unaccounted or any(codes)),
        "unaccounted": unaccounted,
        "left": left,
        "exit_codes": codes,
        "dead": len(dead),
        "faults": faults.counts,
        "sends": verdict.accepted,
        "runs": verdict.runs,
        "excused": verdict.overlaps,
        "violations": counted(verdict.violations),
        "broken": summary(verdict, UNOWNED),
        "examples": [str(violation) for violation in verdict.violations[:100]],
    }


def _names() -> list[str]:
    return [topic.name for topic in topics() if topic.type is not TopicType.STREAM]


def _unaccounted(client: RmqClient) -> list[int]:
    return [client.inspect(name).stats().unaccounted for name in _names()]


def _drain(client: RmqClient) -> dict[str, int]:
    """Wait until the workers have handled all; return what is left."""
    end_s = now_s() + DRAIN_S
    left: dict[str, int] = {"all": 1}
    while left and now_s() < end_s:
        time.sleep(0.5)
        left = {}
        for name in _names():
            stats = client.inspect(name).stats()
            left[name] = stats.backlog + stats.in_flight + stats.waiting
        stream = next(topic for topic in topics() if topic.type is TopicType.STREAM)
        groups = client.stream(stream).groups()
        left[stream.name] = sum((group.lag or 0) + group.pending for group in groups)
        left = {name: number for name, number in left.items() if number}
    return left


def _redrive(client: RmqClient) -> None:
    for name in _names():
        with suppress(RmqError):
            client.dead(name).redrive()


def _dead(client: RmqClient) -> set[tuple[str, str]]:
    found = {(name, each.content.decode()) for name in _names() for each in client.dead(name).list()}
    stream = next(topic for topic in topics() if topic.type is TopicType.STREAM)
    return found | {(stream.name, each.content.decode()) for each in client.stream(stream).dead(GROUP).list()}


if __name__ == "__main__":
    sys.exit(main())
