"""All benchmarks of RMQ itself, one after the other, and the tables of docs/records/benchmarks.md: `make bench`.

The peers have a command of their own, `make bench-peers`; 10^8 messages are `python -m benchmarks.backlog --full`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks import report
from benchmarks.report import NAMES
from benchmarks.support.harness import FIRST_LOOKS, ROOT, say


def main(argv: Sequence[str] | None = None) -> int:
    """Run all; a failure does not keep the others from running, but shows in the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes for all of them")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    options = parser.parse_args(argv)
    failed: list[str] = []
    for name in options.only:
        started_s = time.monotonic()
        quick = ["--quick"] if options.quick else []
        # a process each, so that none inherits the heap of the one before
        code = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *quick], cwd=ROOT, check=False).returncode
        say(f"suite: {name} {'failed' if code else 'done'} after {time.monotonic() - started_s:.0f} s")
        if code:
            failed.append(name)
    if options.quick:
        say(f"suite: first looks only, in {FIRST_LOOKS.relative_to(ROOT)}; docs/records/benchmarks.md stays as it is")
    else:
        report.main([])
    if failed:
        say(f"suite: failed: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
