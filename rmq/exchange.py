"""One round of calls with a server, without the I/O: what to send, what each reply means, what may be repeated.

redis-py's own retries are switched off: they would repeat a claim whose reply was lost and strand what it claimed.
Here sends and reads are repeated, and a claim, an ack or a nack only when it certainly was not carried out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rmq.calls import Call, error_of
from rmq.errors import RedisUnavailableError, ReplyLostError, RmqError
from rmq.scripts import Script, ScriptLibrary
from rmq.wire import pack

NOT_EXECUTED = ("NOSCRIPT", "LOADING", "BUSY ", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "MOVED ", "ASK ")
"""Error replies that say the server did not begin: repeating is safe for every call."""


class Exchange:
    """The state of a round of calls: which are open, and what the others answered.

    Args:
        calls: What to carry out, in any number.
        scripts: Where their texts and SHA-1 come from.
    """

    def __init__(self, calls: Sequence[Call[Any]], scripts: ScriptLibrary) -> None:
        self._calls = calls
        self._scripts = scripts
        self._open = list(range(len(calls)))
        self._sent: list[int] = []
        self._to_load: set[str] = set()
        self.results: list[Any] = [None] * len(calls)
        """Per call its parsed reply, or the error that it met."""
        self.last_trouble = ""
        """The last reason for which something has to be repeated."""

    @property
    def done(self) -> bool:
        """Whether every call has a result."""
        return not self._open and not self._sent

    @property
    def awaited(self) -> int:
        """How many replies are still to come."""
        return len(self._sent)

    def missing_scripts(self) -> list[Script]:
        """Return the scripts to load before the next sending, and forget them."""
        missing = [self._scripts[name] for name in sorted(self._to_load)]
        self._to_load.clear()
        return missing

    def take_request(self) -> bytes:
        """Return the open calls as one packed request; they are awaited from now on."""
        self._sent, self._open = self._open, []
        return b"".join([self._pack(self._calls[index]) for index in self._sent])

    def take_reply(self, reply: Any) -> None:
        """Take the next reply in order."""
        index = self._sent.pop(0)
        self.results[index] = self._calls[index].parse(reply)

    def take_error(self, message: str) -> None:
        """Take the next reply in order, an error: repeat what was not carried out, else it is the result."""
        index = self._sent.pop(0)
        call = self._calls[index]
        if message.startswith(NOT_EXECUTED):
            self.last_trouble = message
            self._open.append(index)
            if message.startswith("NOSCRIPT"):
                self._to_load.add(call.script)
        else:
            self.results[index] = error_of(call, message)

    def not_sent(self, trouble: str) -> None:
        """Note that nothing of the last request reached the server: all of it may be repeated."""
        self._open += self._sent
        self._sent = []
        self.last_trouble = trouble

    def connection_lost(self, trouble: str) -> None:
        """Note that the connection broke: what may be repeated is open again, the rest may have been carried out."""
        self.last_trouble = trouble
        for index in self._sent:
            call = self._calls[index]
            if call.repeatable:
                self._open.append(index)
            else:
                self.results[index] = ReplyLostError(
                    f"the reply to {call.script} on slot {call.slot} of topic {call.topic} was lost ({trouble}); "
                    "if it was carried out, the lease settles it",
                    topic=call.topic,
                    slot=call.slot,
                )
        self._sent = []

    def give_up(self, deadline_s: float) -> None:
        """Note that the deadline has passed: what is open fails."""
        for index in self._open:
            call = self._calls[index]
            self.results[index] = RedisUnavailableError(
                f"no answer from Redis within {deadline_s:g} s ({self.last_trouble})", topic=call.topic, slot=call.slot
            )
        self._open = []

    def _pack(self, call: Call[Any]) -> bytes:
        script = self._scripts[call.script]
        return pack("EVALSHA", script.sha, len(call.keys), *call.keys, *call.args)


def raise_first(results: Sequence[Any]) -> None:
    """Raise the first error among results, if there is one."""
    for result in results:
        if isinstance(result, RmqError):
            raise result
