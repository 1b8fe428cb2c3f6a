"""The rules of an audience: each segment is a name and a Spark SQL condition over a customer's figures.

They are read from a file, and tested on two sample customers before anything is sent or written.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pyspark.sql import SparkSession

from rmq.errors import InvalidValueError
from rmq.spark.failures import SPARK_ERRORS, one_line

FIGURES = (
    "customer", "country", "orders", "turnover", "cancellations", "cancelled_share", "last_order",
    "days_since_last_order",
)  # fmt: skip
"""Columns that a condition may use; null if a customer has no value. `customers.figures` computes them."""

DEFAULT_RULES: Mapping[str, str] = {
    "vip": "turnover >= 5000",
    "regular": "orders >= 5",
    "new": "orders = 1 and days_since_last_order <= 30",
    "lapsed": "days_since_last_order > 180",
    "returns-often": "cancellations >= 2 and cancelled_share > 0.25",
    "abroad": "country <> 'United Kingdom'",
}

MAX_RULES = 1_000

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_TRIALS = """
    SELECT * FROM VALUES
        ('12345', 'France', 3L, CAST(99.5 AS DECIMAL(38,4)), 1L, 0.25D, DATE '2011-12-08', 1),
        ('12346', NULL, 0L, CAST(0 AS DECIMAL(38,4)), 0L, 0D, NULL, NULL)
    AS ({})
"""
"""A customer with all figures, and one with none, for which `turnover / orders` fails. Spark needs no task for them."""


def read_rules(path: str | Path) -> dict[str, str]:
    """Return the rules in a file, in its order.

    Args:
        path: A file `.toml` or `.json`: one table of name -> condition.

    Raises:
        InvalidValueError: The file does not exist or is not TOML or JSON, a rule is given twice, or a condition is not
            a string.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValueError(f"rules file {str(path)!r} can't be read: {error}") from None
    try:
        if path.suffix == ".toml":
            table: object = tomllib.loads(text)
        elif path.suffix == ".json":
            table = json.loads(text, object_pairs_hook=_once)
        else:
            raise InvalidValueError(f"rules file {str(path)!r} must end in .toml or .json")
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise InvalidValueError(f"rules file {str(path)!r} is not valid {path.suffix[1:].upper()}: {error}") from None
    if not isinstance(table, dict):
        raise InvalidValueError(f"rules file {str(path)!r} must be one table of name -> condition")
    rules = cast("dict[str, object]", table)
    for name, condition in rules.items():
        if not isinstance(condition, str):
            raise InvalidValueError(f"rule {name!r} is {condition!r:.100}; it must be a string with a condition")
    return cast("dict[str, str]", rules)


def check_names(rules: Mapping[str, str]) -> None:
    """Check number and names of the rules, without Spark.

    Raises:
        InvalidValueError: There are no rules or too many, or a name is invalid.
    """
    if not 0 < len(rules) <= MAX_RULES:
        raise InvalidValueError(f"there are {len(rules)} rules; the number must be from 1 to {MAX_RULES}")
    for name in rules:
        if not _NAME.fullmatch(name):
            raise InvalidValueError(f"rule {name!r} has an invalid name; it must be 1 to 64 letters, digits and . _ -")


def check_rules(spark: SparkSession, rules: Mapping[str, str]) -> None:
    """Test all rules on sample customers.

    Raises:
        InvalidValueError: There are no rules or too many, a name is invalid, or Spark cannot evaluate a condition.
    """
    check_names(rules)
    trials = spark.sql(_TRIALS.format(", ".join(FIGURES)))
    for name, condition in rules.items():
        try:
            # WHERE refuses anything but a condition on one customer, such as aggregates, windows and non-boolean values
            trials.where(condition).collect()
        except SPARK_ERRORS as error:
            reason = one_line(error)
            raise InvalidValueError(
                f"rule {name!r}: {condition!r:.200} is not a valid condition: {reason:.300}"
            ) from None


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidValueError(f"rule {twice!r} is given twice")
    return table
