"""The Spark data source `format("rmq")`, and the functions `keyed`, `merged` and `with_slot` for frames.

Requires the extra `rmq[spark]` on driver and executors of a cluster, which has its own pyspark, or `rmq[spark-local]`
on one machine. `rmq.spark.register(spark)` registers the format; if `pyspark_rmq` can be imported, Spark finds it by
itself.
"""

from __future__ import annotations

try:
    import pyarrow as _pyarrow  # pyright: ignore[reportMissingTypeStubs]
    import pyspark as _pyspark
except ImportError as error:
    raise ImportError(
        f"rmq.spark needs pyspark >= 4.2 and pyarrow ({error}); install rmq[spark] on a cluster, which brings its own "
        "pyspark, or rmq[spark-local] to run Spark on one machine"
    ) from error

if tuple(int(part) for part in _pyspark.__version__.split(".")[:2]) < (4, 2):
    raise ImportError(f"rmq.spark needs pyspark >= 4.2; the installed version is {_pyspark.__version__}")

from rmq.spark.calls import Refused
from rmq.spark.datasource import RmqDataSource, SaveResult, save
from rmq.spark.folding import keyed, merged, with_slot
from rmq.spark.refusing import refuse, refuse_rows
from rmq.spark.session import open_session, register

__all__ = [
    "Refused",
    "RmqDataSource",
    "SaveResult",
    "keyed",
    "merged",
    "open_session",
    "refuse",
    "refuse_rows",
    "register",
    "save",
    "with_slot",
]

del _pyarrow, _pyspark
