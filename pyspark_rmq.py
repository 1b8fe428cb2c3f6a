"""Makes `format("rmq")` known to Spark, which looks for `DefaultSource` in modules whose names begin with `pyspark_`.

Spark imports all of them whatever format is asked for: where the packages of `rmq[spark]` are missing, this one stays
empty, so that the others keep working.
"""

from contextlib import suppress

with suppress(ImportError):
    from rmq.spark import RmqDataSource as DefaultSource  # noqa: F401
