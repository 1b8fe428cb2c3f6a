"""The server's CPU for one call of every script at its bound: with contents of 20 bytes, and with bodies of 1 MiB.

    python -m benchmarks.bounds [--only claim] [--quick]

While a script runs, the server answers nobody. CPU is counted, not time, so that a busy machine may measure it. It
includes what a call costs beside its script: reading it, and writing its reply.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.support import rendering
from benchmarks.support.bounds_cases import TABLES, waiting_too
from benchmarks.support.bounds_merged import MERGED
from benchmarks.support.bounds_place import MIB, Case, Place, by_examples
from benchmarks.support.harness import Benchmark, Document, Row, say
from benchmarks.support.servers import Servers, standalone
from rmq import Topic
from tests.support.core import default_scripts

CASES = [*TABLES, *by_examples(TABLES, waiting_too)]
BOUND_MS = {0: 5.0, MIB: 50.0}
"""Bytes of a body -> how much a call may cost."""


def forgotten() -> list[str]:
    """Return the scripts of the library that have no case here."""
    return sorted(set(default_scripts().names()) - {case.script for case in CASES})


def measure(options: argparse.Namespace) -> Document:
    """Measure every script at its bound, each time in a slot of its own that is filled anew."""
    if missing := forgotten():
        raise LookupError(f"scripts without a case in bounds_cases or an example: {', '.join(missing)}")
    rows: list[Row] = []
    with standalone("slowlog-log-slower-than -1", "proto-max-bulk-len 512mb") as servers:
        for case in [case for case in (*CASES, *MERGED) if case.script in options.only]:
            for body_bytes in (0, MIB) if case.sizes else (0,):
                say(f"bounds: {case.script}, {case.what}, {body_bytes:,}")
                rows.append(_measured(servers, case, body_bytes, options.repeats))
        return {"settings": {"content_bytes": 20, "large_bytes": MIB}, "rows": rows}


def _measured(servers: Servers, case: Case, body_bytes: int, repeats: int) -> Row:
    samples = [_once(servers, case, body_bytes) for _ in range(repeats)]
    figures = {f"{key}_{name}_ms": round(pick(each[key] for each in samples), 3)
               for key in ("cpu", "script") for name, pick in (("min", min), ("max", max))}  # fmt: skip
    bound_ms = BOUND_MS[body_bytes] if case.bound_ms is None else case.bound_ms
    return {"script": case.script, "what": case.what, "body_bytes": body_bytes, "bound_ms": bound_ms, **figures}


def _once(servers: Servers, case: Case, body_bytes: int) -> dict[str, float]:
    servers.flush()
    with servers.connect() as client:
        place = Place(client, Topic("bench-bounds", case.kind, **case.settings), body_bytes, case.most)
        call = case.build(place)
        sha = client.script_load(default_scripts()[call.script].text)
        client.config_resetstat()
        before = _cpu_s(client)
        reply = client.evalsha(sha, len(call.keys), *call.keys, *call.args)
        after = _cpu_s(client)
        own: Any = client.info("commandstats")["cmdstat_evalsha"]
    call.parse(reply)
    return {"cpu": (after - before) * 1000, "script": own["usec"] / 1000}


def _cpu_s(client: Any) -> float:
    found = client.info("cpu")
    return found["used_cpu_user_main_thread"] + found["used_cpu_sys_main_thread"]


def tables(document: Document) -> str:
    """Render the figures, and say of each whether it is under its bound: the least that was measured counts."""
    rows = [row | {"under": row["cpu_min_ms"] < row["bound_ms"]} for row in document["rows"]]
    lines = rendering.listed(
        rows,
        ("script at its bound", _NAME),
        ("size", _size),
        ("verdict", lambda row: f"under {row['bound_ms']:g} ms: {'yes' if row['under'] else '**no**'}"),
        ("CPU, ms", "{cpu_min_ms:.2f}"),
        ("most", "{cpu_max_ms:.2f}"),
        ("script, ms", "{script_min_ms:.2f}"),
        ("most", "{script_max_ms:.2f}"),
    )
    over = [f"{rendering.shown(row, _NAME)}, {_size(row)}" for row in rows if not row["under"]]
    verdict = f"Over their bound: {'; '.join(over)}" if over else f"All {len(rows)} calls are under their bound"
    return (
        f"Redis {document['redis']}, {document['repeats']} repeats; `CPU`: of the server's main thread for one call, "
        f"least and most; `script`: how long it ran, by `INFO commandstats`.\n\n"
        f"{lines}\n\n{verdict}."
    )


_NAME = "{script}: {what}"


def _size(row: Row) -> str:
    return "1 MiB" if row["body_bytes"] else "20 bytes"


BENCHMARK = Benchmark("bounds", measure, tables, cases=default_scripts().names())
main = BENCHMARK.main

if __name__ == "__main__":
    raise SystemExit(main())
