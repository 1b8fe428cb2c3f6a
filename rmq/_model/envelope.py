r"""The trace context of a message, stored in front of its body, where merging and retries keep it. Pure.

`\0rmq:trace\0`, the traceparent, `\0`, `1` or `0` for whether there is a body, the body. A message sent without a
trace has its body as it is; only one that looks like an envelope by itself gets one with an empty context around it.
"""

from __future__ import annotations

MARK = b"\x00rmq:trace\x00"
MOST_CONTEXT = 512


def wrap(body: bytes | None, trace: str) -> bytes:
    """Return a body with a trace context, a W3C traceparent or nothing, in front of it."""
    return b"%s%s\x00%d%s" % (MARK, trace.encode("ascii"), body is not None, body or b"")


def unwrap(stored: bytes | None) -> tuple[bytes | None, str]:
    """Return the body that was sent, and the trace context, empty for none."""
    if stored is None or not stored.startswith(MARK):
        return stored, ""
    trace, end, rest = stored[len(MARK) :].partition(b"\x00")
    if not end or len(trace) > MOST_CONTEXT or not trace.isascii() or rest[:1] not in (b"0", b"1"):
        return stored, ""  # not ours
    return (rest[1:] if rest[:1] == b"1" else None), trace.decode()
