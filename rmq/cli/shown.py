"""Values as people, terminals and JSON readers get them; see `rmq.shown`, which the pages use, too."""

from rmq.shown import MOST_CHARACTERS, from_now, json_payload, safe_lines, shown, span, when

__all__ = ["MOST_CHARACTERS", "from_now", "json_payload", "safe_lines", "shown", "span", "when"]
