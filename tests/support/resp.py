"""Just enough of the Redis protocol to see where a command or a reply ends."""

from __future__ import annotations

_LINE_TYPES = b"+-:_#,("
_BULK_TYPES = b"$!="
_LIST_TYPES = b"*~>"
_MAP_TYPES = b"%|"


def frame_end(data: bytes | bytearray, start: int = 0) -> int | None:
    """Return where the RESP2 or RESP3 value that begins at `start` ends; None if it is not complete.

    Raises:
        ValueError: There is no RESP value.
    """
    position, missing = start, 1
    while missing:
        line_end = data.find(b"\r\n", position)
        if line_end < 0:
            return None
        kind, argument = data[position : position + 1], bytes(data[position + 1 : line_end])
        position = line_end + 2
        missing -= 1
        if kind in _BULK_TYPES:
            position += int(argument) + 2 if int(argument) >= 0 else 0
            if position > len(data):
                return None
        elif kind in _LIST_TYPES:
            missing += max(0, int(argument))
        elif kind in _MAP_TYPES:
            missing += 2 * int(argument) + (kind == b"|")  # an attribute comes before the value it describes
        elif kind not in _LINE_TYPES:
            raise ValueError(f"not RESP: {bytes(data[start : start + 40])!r}")
    return position


class FrameSplitter:
    """Cuts a stream into complete RESP values."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes of the stream; return the values that are now complete, each as its bytes."""
        self._rest += data
        frames: list[bytes] = []
        start = 0
        while start < len(self._rest):
            end = frame_end(self._rest, start)
            if end is None:
                break
            frames.append(bytes(self._rest[start:end]))
            start = end
        del self._rest[:start]
        return frames


def command_name(frame: bytes) -> str:
    """Return the name of a command (an array of bulk strings) in capitals."""
    return frame.split(b"\r\n", 3)[2].decode("ascii", "replace").upper()
