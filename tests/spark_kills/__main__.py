"""Kills Spark's drivers and JVMs at random moments, and judges what they leave behind.

    python -m tests.spark_kills --kills 20 --seed 1
    python -m tests.spark_kills --kinds source+stream,archive --kills 5

A kind is a query or a job. Kinds with a plus between them share a driver and a JVM. A run of it is killed with SIGKILL
at a moment by lot: in its start, in a batch or between two; driver and JVM at once, or one of them. Then it rests, for
longer than a lease every other time, while others work on its topics. The next run goes on from its checkpoint. At the
end a last run drains all, and the accounts are judged. The exit code is 1 if a row is lost or twice where the kind
promises once, or if a batch came back with other rows.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from rmq import RmqClient
from tests.spark_kills.actors import LEASE_S
from tests.spark_kills.judging import Verdict
from tests.spark_kills.kinds import add
from tests.spark_kills.lives import VICTIMS, Kill, Life, Part
from tests.spark_kills.stream_kinds import KINDS
from tests.support.servers import RedisServer

GROUPS = "source+stream+fan-out,sinks+archive,refusals+once"
START_S = 15.0
"""About how long a program takes to start: kills that find it at that are spread over this time."""

BATCHES_S = 60.0
"""How long a kill waits for batches at most: then there are none."""

LAST_S = 400.0
LAST_RUNS = 6

ITSELF = "nothing: it had ended by itself"
SLOW = "Python worker failed to connect back"
"""What Spark says where a Python process has not started within 10 s. No setting changes that."""

Judged = tuple[Verdict, list[Kill]]
"""What a kind has shown, and its kills."""


def main() -> int:
    """Kill all kinds; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=GROUPS, help=f"of {', '.join(KINDS)}; by default {GROUPS}")
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--minutes", type=float, default=600.0, help="kill for so long at most")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn by lot")
    parser.add_argument("--jobs", type=int, default=2, help="how many drivers at a time")
    parser.add_argument("--folder", type=Path, help="keep files, checkpoints and logs here")
    options = parser.parse_args()
    groups = [group.split("+") for group in options.kinds.split(",")]
    if unknown := {name for group in groups for name in group} - KINDS.keys():
        parser.error(f"--kinds: no kind {', '.join(sorted(unknown))}; the kinds are {', '.join(KINDS)}")
    with ExitStack() as stack:
        root = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-spark-kills-")))
        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        until_s = time.monotonic() + 60 * options.minutes
        runs = [
            pool.submit(kill_group, group, options.kills, options.seed, root / "+".join(group), until_s)
            for group in groups
        ]
        results = {name: judged for run in runs for name, judged in run.result().items()}
    whole, phases = Verdict(), Counter[str]()
    for verdict, kills in results.values():
        add(whole, verdict)
        phases.update(kill.phase for kill in kills)
    print(
        f"{len(results)} kinds, {phases.total()} kills ({phases['start']} in a start, {phases['batch']} in a batch, "
        f"{phases['between']} between two): {whole.rows:,} rows, lost {len(whole.lost)}, twice {len(whole.twice)}, "
        f"changed batches {len(whole.changed)}, wrong accounts {len(whole.accounts)}"
    )
    return 0 if whole.good else 1


def kill_group(
    names: Sequence[str], number: int, seed: int, folder: Path, until_s: float = float("inf")
) -> dict[str, Judged]:
    """Kill kinds that share a driver so many times, or until a time, let them end, and judge each."""
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        client = stack.enter_context(RmqClient(server.url))
        killing = stack.enter_context(Killing(names, client, seed, folder))
        for kind in killing.kinds.values():
            stack.enter_context(kind.at_work())
        while killing.number < number and time.monotonic() < until_s:
            killing.kill()
        killing.finish()
        if killing.slow:
            print(f"{'+'.join(names)}: {killing.slow} runs more ended as a Python process had not started within 10 s")
        judged = killing.judge()
        for name, (verdict, kills) in judged.items():
            _tell(name, verdict, kills)
        return judged


class Killing:
    """The runs of kinds that share a driver, one after the other.

    Args:
        names: The kinds.
        client: Their topics' Redis.
        seed: Of what is drawn by lot.
        folder: For all files.
    """

    def __init__(self, names: Sequence[str], client: RmqClient, seed: int, folder: Path) -> None:
        self._name, self._client, self._folder = "+".join(names), client, folder
        self._chance = random.Random(f"{seed} {self._name}")
        for name in names:
            (folder / name).mkdir()
        self.kinds = {name: KINDS[name](client, folder / name, self._chance) for name in names}
        self._kills: dict[str, list[Kill]] = {name: [] for name in names}
        self._failed: list[str] = []
        self._batch_s = 5.0
        self._lives = self.slow = 0
        self._before: Life | None = None
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            self._before.end()

    @property
    def number(self) -> int:
        """How many kills there were: a run that has ended by itself is none."""
        return sum(kill.victims != ITSELF for kill in next(iter(self._kills.values())))

    def kill(self) -> None:
        """Start a run, kill it at a moment by lot, and rest."""
        life, self._lives = self._lives, self._lives + 1
        chance, kinds = self._chance, self.kinds.values()
        victims = VICTIMS[0] if chance.random() < 0.6 else chance.choice(VICTIMS[1:])
        for kind in kinds:
            kind.make_work(life)
        now, parts = self._start(life)
        left = self._follow(now)
        try:
            if chance.random() < 0.1:
                time.sleep(chance.random() * START_S)
            else:
                now.wait_ready()
                # by batches, and not by seconds: so kills spread over all that a run does, on a slow machine, too
                took_s = now.wait_progress(chance.choice(parts), chance.choice((0, 0, 1, 1, 2, 4)), BATCHES_S)
                self._batch_s = took_s or self._batch_s
                time.sleep(chance.random() * min(15.0, self._batch_s))
            now.check()
            at_s, victims, phases = now.kill(victims)
        except RuntimeError as error:
            self._fail(str(error))
            at_s, _, phases = now.kill(victims)
            victims = ITSELF
        for (name, kind), phase in zip(self.kinds.items(), phases, strict=True):
            self._kills[name].append(Kill(life, at_s, victims, phase))
            kind.after()
        rest_s = chance.uniform(1.1, 1.5) * LEASE_S if chance.random() < 0.5 else chance.uniform(0, 1)
        notes = f"; {', '.join(left)} of the run before had to be killed" if left else ""
        self._note(f"{life}: {victims} killed in {', '.join(phases)}; rests {rest_s:.1f} s{notes}")
        for kind in kinds:
            kind.rest(rest_s)
        time.sleep(rest_s)

    def finish(self) -> None:
        """Let others end, and run the programs to their end until nothing is left."""
        for kind in self.kinds.values():
            kind.calm()
        self._note("the last run")
        for again in range(LAST_RUNS):
            time.sleep(1.2 * LEASE_S)
            now, _ = self._start(self._lives + again, last=True)
            self._follow(now)
            try:
                now.wait_end(LAST_S)
            except RuntimeError as error:
                self._fail(str(error))
            if all(kind.is_settled() for kind in self.kinds.values()):
                return

    def judge(self) -> dict[str, Judged]:
        """Judge each kind."""
        found = {name: (kind.judge(self._kills[name]), self._kills[name]) for name, kind in self.kinds.items()}
        for verdict, _ in found.values():
            verdict.accounts += self._failed
        return {
            name: (verdict, [kill for kill in kills if kill.victims != ITSELF])
            for name, (verdict, kills) in found.items()
        }

    def _start(self, life: int, *, last: bool = False) -> tuple[Life, list[Part]]:
        parts = [Part(kind.program, self._folder / name, kind.told(life)) for name, kind in self.kinds.items()]
        return Life(parts, life, self._client.url, self._folder / f"said-{life}", last=last), parts

    def _follow(self, now: Life) -> list[str]:
        """Make sure that the run before is gone; return what had to be killed of it."""
        before, self._before = self._before, now
        return before.end() if before is not None else []

    def _fail(self, text: str) -> None:
        """Note that a run has ended by itself: if Spark would not wait for a Python process, that is no failure."""
        first, *more = text.splitlines()
        why = [line for line in more if SLOW in line or "Error:" in line or "Exception:" in line]
        self._note(f"{first} {(why or more or [''])[0].strip()[:300]}")
        if SLOW in text:
            self.slow += 1
        else:
            self._failed.append(first)

    def _note(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:6.1f} s  {self._name} {text}", file=sys.stderr, flush=True)


def _tell(name: str, verdict: Verdict, kills: list[Kill]) -> None:
    phases, victims = Counter(kill.phase for kill in kills), Counter(kill.victims for kill in kills)
    told = ", ".join(f"{number} {what}" for what, number in (*phases.items(), *victims.items()))
    print(f"{name}: {len(kills)} kills ({told}), {verdict.rows:,} rows, {verdict.excused} with both after a lease")
    for what in ("lost", "twice", "changed", "accounts"):
        found = getattr(verdict, what)
        for text in found[:5]:
            print(f"  {what}: {text}")
        if len(found) > 5:
            print(f"  {what}: {len(found) - 5} more", flush=True)


if __name__ == "__main__":
    sys.exit(main())
