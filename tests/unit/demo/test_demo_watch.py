"""How long the demo waits for the end of a run: as long as something moves."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rmq.demo import show
from rmq.demo.orders import read_orders
from rmq.demo.summary import Account

QUIET = Account("demo", 9, 0, 0, 0, 0, 0, 0, backlog=9, due=9, in_flight=0, waiting=0, found=0)


class Run:
    """A run in which each look, `moving` times, shows one more delivery; at the end `left` messages are left."""

    def __init__(self, moving: int, left: int) -> None:
        self.looks, self.moving, self.left = 0, moving, left

    def accounts(self) -> tuple[Account, ...]:
        self.looks += 1
        delivered = min(self.looks, self.moving)
        return (replace(QUIET, delivered=delivered, backlog=self.left if delivered == self.moving else 9),)


def watch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter(range(1_000_000))
    monkeypatch.setattr(show.time, "monotonic", lambda: next(now_s))
    monkeypatch.setattr(show.time, "sleep", lambda _: None)
    player: Any = SimpleNamespace(is_alive=lambda: False, lines=1, minute=0.0, error=None)
    crew: Any = SimpleNamespace(check=lambda: None)
    show._watch(Console(quiet=True), read_orders()[:1], player, crew, run.accounts, patience_s=20)


def test_it_waits_while_something_moves_and_ends_when_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(moving=500, left=0)  # far longer than the patience
    watch(run, monkeypatch)
    assert run.looks == 500


def test_it_gives_up_when_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(moving=100, left=1)
    watch(run, monkeypatch)
    assert 105 < run.looks < 130
