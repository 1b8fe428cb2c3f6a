"""An archive job to be killed: notes each step, and stops at the one that is named."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from rmq.spark.jobs.archive_stream import ArchiveSettings, run
from tests.spark.sessions import make_session


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])

    def say(step: str) -> None:
        with Path(options["log"]).open("a", encoding="utf-8") as log:
            log.write(step + "\n")
        if step.startswith(options.get("stall") or "never"):
            time.sleep(options["seconds"])

    run(make_session(), ArchiveSettings(**options["settings"]), say)


if __name__ == "__main__":
    main()
