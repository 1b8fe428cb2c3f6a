"""JSON merge patches. Source: RFC 7396."""

from __future__ import annotations

import json
from typing import Any, cast


def json_merge_patch(target: Any, patch: Any) -> Any:
    """Return a JSON value with a merge patch applied: members of objects are set, `null` removes them.

    Args:
        target: JSON text as `bytes`, or the value that it says. It stays as it is.
        patch: Likewise.

    Returns:
        JSON text as `bytes` where the target was that, else the value.

    Raises:
        ValueError: Bytes that are not JSON.

    Source: RFC 7396, section 2. Patches in a row are no patch of their own: fold them onto the document.

    Examples:
        >>> json_merge_patch({"price": 5, "old": True}, {"price": 6, "old": None})
        {'price': 6}
    """
    if isinstance(target, bytes):
        patched = _patched(json.loads(target), _value_of(patch))
        return json.dumps(patched, separators=(",", ":"), ensure_ascii=False).encode()
    return _patched(target, _value_of(patch))


def _value_of(patch: Any) -> Any:
    return json.loads(patch) if isinstance(patch, bytes) else patch


def _patched(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    members = dict(cast("dict[str, Any]", target)) if isinstance(target, dict) else {}
    for name, value in cast("dict[str, Any]", patch).items():
        if value is None:
            members.pop(name, None)
        else:
            members[name] = _patched(members.get(name), value)
    return members
