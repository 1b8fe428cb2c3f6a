"""The scripts for the list of workers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rmq._broker.binding import Bound
from rmq._broker.keys import WORKER_INFOS_KEY, WORKERS_KEY
from rmq._model.display import shown
from rmq._model.schema import MAX_DOCUMENT_BYTES, PassedOver
from rmq._model.workers import WorkerInfo
from rmq._transport.call import Call, plain
from rmq.errors import UnreadableDocumentError

_BEAT, _WORKERS = Bound("worker_beat"), Bound("workers")
_KEYS = {"beats": WORKERS_KEY, "infos": WORKER_INFOS_KEY}

MOST_WORKERS = 1_000


def worker_beat(name: str, info: str, forget_ms: int) -> Call[int]:
    """Build a worker's sign of life, which answers Redis' time, ms; an empty `info`: it has left."""
    args = _BEAT.args(name=name, info=info, forget_ms=forget_ms, most=MOST_WORKERS)
    return Call(_BEAT.name, _BEAT.names(**_KEYS), args, int, True, WORKERS_KEY, 0)


def worker_beat_again(name: str, now_ms: int) -> Call[int]:
    """Build a later sign of life of a worker that has nothing new to say; answers 0 where its report is gone.

    Args:
        name: Of the worker.
        now_ms: Redis' time as far as is known.
    """
    return plain("ZADD", WORKERS_KEY, "XX", "CH", now_ms, name)


def workers(names: Sequence[bytes] = ()) -> Call[tuple[list[WorkerInfo], Sequence[bytes]]]:
    """Build the reading of all workers, or of the named ones.

    It answers what was read, and the names of those that are still to be read, since the reports are long.
    """

    def parse(reply: list[Any]) -> tuple[list[WorkerInfo], Sequence[bytes]]:
        now_ms, flat, rest = reply
        rows = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return list(_readable(rows, int(now_ms))), rest

    args = _WORKERS.args(limit=MOST_WORKERS, longest=MAX_DOCUMENT_BYTES, names=names)
    return Call(_WORKERS.name, _WORKERS.names(**_KEYS), args, parse, True, WORKERS_KEY, 0)


def _readable(rows: Iterable[tuple[bytes, bytes, bytes]], now_ms: int) -> Iterator[WorkerInfo]:
    """Yield the workers that can be read; others, of newer versions or of strangers, are logged once."""
    for name, seen, info in rows:
        told = shown(name)
        try:
            yield WorkerInfo.from_json(info, told, int(float(seen)), now_ms)
        except UnreadableDocumentError as error:
            _passed_over.tell(told, error)
        except (OverflowError, ValueError):
            _passed_over.tell(
                told, UnreadableDocumentError(f"worker {told} was seen at {shown(seen)}, which is not a time")
            )


_passed_over = PassedOver(logging.getLogger("rmq.workers"))
