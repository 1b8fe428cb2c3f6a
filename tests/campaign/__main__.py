"""Runs a campaign, judges it, and writes down what came of it.

    python -m tests.campaign --minutes 30 --seed 1
    python -m tests.campaign --hours 4 --owners redis
    python -m tests.campaign --minutes 2 --faults 10 --only "worker killed" failover

The exit code is 1 if anything was lost, unexpected, duplicated without a cause, at once without an excuse, early,
without an owner for too long, not accounted for, or left over; with --hours also if anything grows.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.support.harness import machine
from tests.campaign.page import render
from tests.campaign.run import Outcome, Settings, run
from tests.campaign.topics import FOLDING, LEASE_S, SESSION_S, SPARK, STREAM
from tests.histories.judge import KINDS, Rules, Verdict, counted, judge
from tests.histories.story import Story, read
from tests.support.servers import redis_binary

FAULTS_PER_MINUTE = 200 / 30
MESSAGES_PER_MINUTE = 1_000_000 / 30
EXAMPLES = 20


def main() -> int:
    """Run a campaign; return the exit code."""
    options = _options()
    minutes = 60 * options.hours if options.hours else options.minutes
    messages, faults = options.messages, options.faults
    settings = Settings(
        messages=int(MESSAGES_PER_MINUTE * minutes) if messages is None else messages,
        faults=int(FAULTS_PER_MINUTE * minutes) if faults is None else faults,
        minutes=minutes,
        seed=options.seed,
        recovery_s=options.recovery,
        spark=0 if options.no_spark else options.spark,
        brief=options.brief,
        only=options.only,
        soak=bool(options.hours),
        before=options.before,
        owners=options.owners,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers and processes end, too
    warnings.simplefilter("ignore")  # kazoo warns of a chroot that the workers create
    logging.disable()
    if options.again:
        document = judged_again(json.loads(options.json.read_text("utf-8")), read(options.again / "events"))
    else:
        with ExitStack() as stack:
            folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-campaign-")))
            folder.mkdir(parents=True, exist_ok=True)
            ran = machine() | {"redis": _redis_version()}
            document = {"machine": ran} | _document(settings, run(settings, folder / "events", folder))
    print(json.dumps(document, indent=1))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        if options.page:
            options.page.write_text(render(options.page.read_text("utf-8"), document), "utf-8")
    print(_summary(document))
    return 1 if document["violations"] else 0


def _summary(document: dict[str, Any]) -> str:
    faults, wrong = sum(document["faults"].values()), sum(document["violations"].values())
    return (
        f"{document['accepted']:,} sends accepted, {document['runs']:,} handlings, {faults} faults, {wrong} violations"
    )


def judged_again(document: dict[str, Any], story: Story) -> dict[str, Any]:
    """Return a result with what the judge says now of the same events; all that others have found stays."""
    settings = document["settings"]
    lease_s, session_s, recovery_s = settings["lease_s"], settings["session_s"], settings["recovery_s"]
    rules = Rules(lease_s, session_s, recovery_s, FOLDING, (STREAM,), (SPARK,), pause_s=lease_s)
    assert not document["notes"]["dead"], "who was dead is not known any more"
    verdict = judge(story, rules)
    others = {kind: times for kind, times in document["violations"].items() if kind not in KINDS}
    said = [each for each in document["examples"] if each.partition(":")[0] not in KINDS]
    return (
        document
        | _judged(verdict)
        | {
            "violations": others | dict(counted(verdict.violations)),
            "examples": [*said, *map(str, verdict.violations)][:EXAMPLES],
        }
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, help="messages that the producers send (33,333 a minute)")
    parser.add_argument("--faults", type=int, help="faults (20 in 3 minutes)")
    parser.add_argument("--minutes", type=float, default=30.0, help="in what time")
    parser.add_argument("--hours", type=float, help="a soak of so many hours: what grows is a violation")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn by lot")
    parser.add_argument("--only", nargs="*", default=[], help="kinds of faults; all by default")
    parser.add_argument("--no-spark", action="store_true", help="without the Spark job")
    parser.add_argument("--spark", type=int, default=20, help="how often the Spark job writes")
    parser.add_argument("--brief", action="store_true", help="short faults, and no elections in Redis")
    parser.add_argument("--recovery", type=float, default=5.0, help="seconds beyond the session without an owner")
    parser.add_argument("--before", help="commit of the release before; its newest tag, or half a day ago, by default")
    parser.add_argument("--owners", choices=("zookeeper", "redis"), default="zookeeper", help="what keeps the owners")
    parser.add_argument("--keep", type=Path, help="keep events and logs in this folder, which must be new or empty")
    parser.add_argument("--again", type=Path, help="only judge once more what a run with this --keep left, into --json")
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--page", type=Path, help="the page to render it into")
    return parser.parse_args()


def _document(settings: Settings, outcome: Outcome) -> dict[str, Any]:
    verdict = outcome.verdict
    return {
        "campaign": "processes",
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": {
            "messages": settings.messages,
            "faults": settings.faults,
            "minutes": settings.minutes,
            "seed": settings.seed,
            "lease_s": LEASE_S,
            "session_s": SESSION_S,
            "recovery_s": settings.recovery_s,
            "elections": not settings.brief,
            "owners": settings.owners,
        },
        **_judged(verdict),
        "faults": dict(sorted(outcome.faults.items())),
        "not tried": outcome.not_tried,
        "violations": dict(Counter(said.partition(":")[0] for said in outcome.violations)),
        "examples": outcome.violations[:EXAMPLES],
        "most": outcome.most,
        "notes": outcome.notes,
        "events": sorted(outcome.texts),
    }


def _judged(verdict: Verdict) -> dict[str, Any]:
    return {
        "accepted": verdict.accepted,
        "refused": verdict.refused,
        "unknown": verdict.unknown,
        "runs": verdict.runs,
        "retries": verdict.retries,
        "duplicates": dict(verdict.duplicates),
        "excused overlaps": dict(verdict.overlaps),
        "longest_unowned_s": round(verdict.longest_unowned_s, 2),
    }


def _redis_version() -> str:
    said = subprocess.run([redis_binary(), "--version"], capture_output=True, text=True, check=False).stdout
    return next((word[2:] for word in said.split() if word.startswith("v=")), "unknown")


if __name__ == "__main__":
    sys.exit(main())
