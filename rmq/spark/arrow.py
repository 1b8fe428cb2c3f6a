"""pyarrow, which has no types, at the one place where it comes in."""

from __future__ import annotations

from typing import Any

import pyarrow  # pyright: ignore[reportMissingTypeStubs]

pa: Any = pyarrow
