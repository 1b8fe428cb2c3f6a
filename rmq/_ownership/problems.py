"""The current problems of a worker's coordination, logged when they begin and at intervals while they last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

CHANGED_S = 60.0
"""Interval after which a problem whose text has changed is logged again, seconds."""

AGAIN_S = 600.0
"""Interval after which a lasting problem is logged again, seconds."""


@dataclass(slots=True)
class _Problem:
    text: str
    since_s: float
    patience_s: float
    logged: str = ""
    logged_s: float = -inf


class ProblemLog:
    """Collects the problems of each round, and decides which to log."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all: dict[str, _Problem] = {}
        self._noted: set[str] = set()
        self._events: list[str] = []

    def begin(self) -> None:
        """Start a round."""
        self._noted.clear()

    def note(self, name: str, text: str, patience_s: float = 0.0) -> None:
        """Record a problem of this round. It is logged once it has lasted `patience_s`.

        Notes with the same name in successive rounds are the same problem.
        """
        self._noted.add(name)
        problem = self._all.setdefault(name, _Problem(text, self._clock(), patience_s))
        problem.text, problem.patience_s = text, patience_s

    def tell(self, text: str) -> None:
        """Log an event once."""
        self._events.append(text)

    def end(self) -> None:
        """Complete a round; problems that were not recorded in it count as solved."""
        self._all = {name: problem for name, problem in self._all.items() if name in self._noted}

    def news(self) -> list[str]:
        """Return the texts to log now, which then count as logged."""
        now_s = self._clock()
        news, self._events = self._events, []
        for problem in self._lasting(now_s):
            if now_s - problem.logged_s >= (AGAIN_S if problem.logged == problem.text else CHANGED_S):
                problem.logged, problem.logged_s = problem.text, now_s
                news.append(problem.text)
        return news

    def current(self) -> tuple[str, ...]:
        """Return the texts of all problems that have lasted for their `patience_s`."""
        return tuple(each.text for each in self._lasting(self._clock()))

    def _lasting(self, now_s: float) -> list[_Problem]:
        return [each for each in self._all.values() if now_s - each.since_s >= each.patience_s]
