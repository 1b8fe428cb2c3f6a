"""Formats values for terminals and pages, and escapes payloads, which may be hostile. Pure."""

from __future__ import annotations

import unicodedata

MOST_CHARACTERS = 200
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ACTING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that are escaped: controls, invisible formatting, surrogates, private use, unassigned."""


def shown(value: str | bytes, most: int = MOST_CHARACTERS) -> str:
    r"""Return text without control characters: an escape becomes `\x1b`, a byte that is not UTF-8 `\xff`.

    Args:
        value: Text or bytes from anywhere.
        most: Maximum number of characters; longer text is cut, and ends in `…` and its length in bytes.
    """
    if isinstance(value, bytes):
        # a character has up to 4 bytes; what is cut anyway need not be decoded
        text, size = value[: 4 * (most + 1)].decode(errors="backslashreplace"), len(value)
    else:
        text, size = value, len(value.encode(errors="surrogatepass"))
    safe = "".join(map(_safe, text[: most + 1]))
    return safe if len(safe) <= most else f"{safe[:most]}… ({size:,} bytes)"


def brief(value: object, most: int = MOST_CHARACTERS) -> str:
    """Return the `repr` of a value for an error: cut if it is long, and its type if `repr` fails."""
    try:
        text = repr(value)
    except Exception:  # an int of more than 4,300 digits has none either
        return f"a value of type {type(value).__name__} without a repr"
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"


def safe_lines(text: str) -> str:
    """Return a text of several lines, such as a traceback, with everything but its line ends escaped."""
    return "\n".join("".join(map(_safe, line)) for line in text.split("\n"))


def _safe(character: str) -> str:
    if character.isprintable():  # most of them; also what has a width of its own, as letters and emoji do
        return character
    if named := _NAMED.get(character):
        return named
    if unicodedata.category(character) not in _ACTING:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def counted(number: int, what: str, more: str = "") -> str:
    """Return a number with its noun: `1 value`, `2,000 values`; `more` is the plural, by default the noun with an s."""
    return f"{number:,} {what if number == 1 else more or what + 's'}"


def span(ms: float) -> str:
    """Return a length of time in its two largest units: `340 ms`, `4.2 s`, `3 m 10 s`, `2 h 5 m`, `3 d 4 h`."""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms // 100 / 10:g} s"
    seconds = int(ms // 1_000)
    for size_s, unit, smaller_s, smaller in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size_s:
            rest = seconds % size_s // smaller_s
            return f"{seconds // size_s:,} {unit}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError("unreachable: at least a minute, but shorter than every unit")
