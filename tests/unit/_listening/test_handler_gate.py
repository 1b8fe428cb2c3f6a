"""Whose turn it is among the threads of a listener."""

from __future__ import annotations

import threading

from rmq import Adaptive
from rmq._io.backend import THREADS
from rmq._listening.handler_gate import HandlerGate, HandlerPool
from tests.support.waiting import wait_until


def waiting(gate: HandlerGate, worker: int, order: list[int]) -> threading.Thread:
    def wait() -> None:
        while (began_s := gate.begin(60, worker)) is None:
            pass
        order.append(worker)
        gate.end(began_s)

    thread = threading.Thread(target=wait)
    before = gate.share.waiting
    thread.start()
    wait_until(lambda: gate.share.waiting > before)
    return thread


def test_who_had_to_ask_again_keeps_its_place() -> None:
    # with ZooKeeper a slot belongs to one thread: one that always came last would have its messages wait for ever
    gate = HandlerPool(THREADS, handlers=1).gate(1.0, None, 3)
    began_s = gate.begin(0, 0)
    assert began_s is not None
    assert gate.begin(0, 1) is None  # came first, and gave up for a moment
    order: list[int] = []
    threads = [waiting(gate, 2, order), waiting(gate, 1, order)]
    gate.end(began_s)
    for thread in threads:
        thread.join(60)
    assert order == [1, 2]


def test_after_its_turn_a_thread_goes_to_the_end() -> None:
    gate = HandlerPool(THREADS, handlers=1).gate(1.0, None, 2)
    first = gate.begin(0, 1)
    assert first is not None
    assert gate.begin(0, 2) is None
    gate.end(first)
    second = gate.begin(0, 1)  # nobody waits at this moment
    assert second is not None
    order: list[int] = []
    threads = [waiting(gate, 2, order)]
    gate.end(second)
    threads[0].join(60)
    assert order == [2]
    assert gate.share.running == gate.share.waiting == 0


def test_a_wish_is_granted_in_its_turn_and_tells() -> None:
    pool = HandlerPool(THREADS, handlers=1)
    first, other = pool.gate(1.0, None, 2), pool.gate(1.0, None, 2)
    began_s = first.begin(0, 0)
    assert began_s is not None
    told: list[str] = []
    wish, late = other.wish(lambda: told.append("wish")), other.wish(lambda: told.append("late"))
    assert (wish.began_s, told) == (None, [])
    assert first.go_on(began_s) is None  # the other one has used less
    assert (told, late.began_s) == (["wish"], None)
    other.withdraw(late)
    other.withdraw(wish)  # it was granted: its turn ends
    for gate in (first, other):
        assert gate.share.running == gate.share.waiting == 0
    again = other.wish(lambda: told.append("again"))
    assert again.began_s is not None
    assert told == ["wish"]  # granted at once: nobody has to be told


def test_a_turn_goes_on_while_nobody_else_waits() -> None:
    gate = HandlerPool(THREADS, handlers=1).gate(1.0, None, 2)
    began_s = gate.begin(0, 0)
    assert began_s is not None
    mine = gate.wish(lambda: None)  # of the same listener: who of it goes on makes no difference
    next_s = gate.go_on(began_s)
    assert next_s is not None
    assert mine.began_s is None
    gate.end(next_s)
    assert mine.began_s is not None


def test_a_call_that_was_given_up_has_neither_a_turn_nor_an_age_until_it_ends() -> None:
    pool = HandlerPool(THREADS, handlers=2)
    gate, other = pool.gate(1.0, Adaptive(), 4), pool.gate(1.0, None, 4)
    hung = gate.begin(0, 1)
    assert hung is not None
    gate.handling(1)
    assert gate.begin(0, 2) is None  # the limit is 1
    gate.give_up(1)
    gate.give_up(1)
    began_s = gate.begin(0, 2)
    assert began_s is not None
    assert (gate.share.running, gate.overfull) == (1, False)
    used_s = gate.share.used_s(began_s + 100)
    assert 100 <= used_s < 150, "the time of one handler"
    assert gate.handled(1, 1, [(b"a", 1, 1)]) == [None]  # it ends after all
    assert (gate.share.running, gate.overfull) == (2, True)
    assert other.begin(0, 3) is None
    gate.end(hung)
    gate.end(began_s)
    assert gate.share.running == 0
    assert gate.share.used_s(began_s + 100) < 50
    ended_s = other.begin(0, 3)
    assert ended_s is not None
    other.handling(3)
    assert other.handled(3, 1, []) == []
    other.give_up(3)  # too late
    assert other.share.running == 1
