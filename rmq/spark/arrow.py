"""pyarrow, and what of pyspark has no types because of it, at the one place where they come in."""

from __future__ import annotations

from typing import Any

import pyarrow  # pyright: ignore[reportMissingTypeStubs]
from pyspark.sql.pandas import types as pyspark_types

pa: Any = pyarrow
spark_types: Any = pyspark_types
