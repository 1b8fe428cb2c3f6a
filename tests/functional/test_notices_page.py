"""The page on notices is one program: it runs as it stands, and prints and posts what the page shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/operate/notices.md").read_text("utf-8")
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
(PROGRAM,), (SHOWN,), (POSTED,) = ([text for kind, text in BLOCKS if kind == each] for each in ("python", "", "json"))


def test_the_program_prints_and_posts_what_the_page_shows() -> None:
    posts = list[bytes]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    receiver = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        capture_output=True,
        encoding="utf-8",
        env=os.environ | {"ALERTS": f"http://127.0.0.1:{receiver.server_port}/"},
        timeout=60,
    )
    receiver.shutdown()
    receiver.server_close()
    assert done.returncode == 0, done.stderr
    assert done.stdout == SHOWN
    [posted], shown = (json.loads(post) for post in posts), json.loads(POSTED)
    assert timeless(posted) == timeless(shown)


def timeless(document: dict[str, object]) -> str:
    return re.sub(r"\d{13}", "0", json.dumps(document))
