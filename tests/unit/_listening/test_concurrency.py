"""Whose turn it is among the threads of a listener."""

from __future__ import annotations

import threading

from rmq import Adaptive
from rmq._io.backend import THREADS
from rmq._listening.concurrency import ConcurrencyLimiter, ListenerPermits
from tests.support.waiting import wait_until


def waiting(permits: ListenerPermits, worker: int, order: list[int]) -> threading.Thread:
    def wait() -> None:
        while (began_s := permits.begin(60, worker)) is None:
            pass
        order.append(worker)
        permits.end(began_s)

    thread = threading.Thread(target=wait)
    before = permits.share.waiting
    thread.start()
    wait_until(lambda: permits.share.waiting > before)
    return thread


def test_who_had_to_ask_again_keeps_its_place() -> None:
    # with ZooKeeper a slot belongs to one thread: one that always came last would have its messages wait for ever
    permits = ConcurrencyLimiter(THREADS, handlers=1).permits(1.0, None, 3)
    began_s = permits.begin(0, 0)
    assert began_s is not None
    assert permits.begin(0, 1) is None  # came first, and gave up for a moment
    order: list[int] = []
    threads = [waiting(permits, 2, order), waiting(permits, 1, order)]
    permits.end(began_s)
    for thread in threads:
        thread.join(60)
    assert order == [1, 2]


def test_after_its_turn_a_thread_goes_to_the_end() -> None:
    permits = ConcurrencyLimiter(THREADS, handlers=1).permits(1.0, None, 2)
    first = permits.begin(0, 1)
    assert first is not None
    assert permits.begin(0, 2) is None
    permits.end(first)
    second = permits.begin(0, 1)  # nobody waits at this moment
    assert second is not None
    order: list[int] = []
    threads = [waiting(permits, 2, order)]
    permits.end(second)
    threads[0].join(60)
    assert order == [2]
    assert permits.share.running == permits.share.waiting == 0


def test_a_wish_is_granted_in_its_turn_and_tells() -> None:
    pool = ConcurrencyLimiter(THREADS, handlers=1)
    first, other = pool.permits(1.0, None, 2), pool.permits(1.0, None, 2)
    began_s = first.begin(0, 0)
    assert began_s is not None
    told: list[str] = []
    request, late = other.request(lambda: told.append("wish")), other.request(lambda: told.append("late"))
    assert (request.began_s, told) == (None, [])
    assert first.go_on(began_s) is None  # the other one has used less
    assert (told, late.began_s) == (["wish"], None)
    other.cancel(late)
    other.cancel(request)  # it was granted: its turn ends
    for permits in (first, other):
        assert permits.share.running == permits.share.waiting == 0
    again = other.request(lambda: told.append("again"))
    assert again.began_s is not None
    assert told == ["wish"]  # granted at once: nobody has to be told


def test_a_turn_goes_on_while_nobody_else_waits() -> None:
    permits = ConcurrencyLimiter(THREADS, handlers=1).permits(1.0, None, 2)
    began_s = permits.begin(0, 0)
    assert began_s is not None
    mine = permits.request(lambda: None)  # of the same listener: who of it goes on makes no difference
    next_s = permits.go_on(began_s)
    assert next_s is not None
    assert mine.began_s is None
    permits.end(next_s)
    assert mine.began_s is not None


def test_a_call_that_was_given_up_has_neither_a_turn_nor_an_age_until_it_ends() -> None:
    pool = ConcurrencyLimiter(THREADS, handlers=2)
    permits, other = pool.permits(1.0, Adaptive(), 4), pool.permits(1.0, None, 4)
    hung = permits.begin(0, 1)
    assert hung is not None
    permits.call_started(1)
    assert permits.begin(0, 2) is None  # the limit is 1
    permits.give_up(1)
    permits.give_up(1)
    began_s = permits.begin(0, 2)
    assert began_s is not None
    assert (permits.share.running, permits.over_limit) == (1, False)
    used_s = permits.share.used_s(began_s + 100)
    assert 100 <= used_s < 150, "the time of one handler"
    assert permits.call_ended(1, 1, [(b"a", 1, 1)]) == [None]  # it ends after all
    assert (permits.share.running, permits.over_limit) == (2, True)
    assert other.begin(0, 3) is None
    permits.end(hung)
    permits.end(began_s)
    assert permits.share.running == 0
    assert permits.share.used_s(began_s + 100) < 50
    ended_s = other.begin(0, 3)
    assert ended_s is not None
    other.call_started(3)
    assert other.call_ended(3, 1, []) == []
    other.give_up(3)  # too late
    assert other.share.running == 1
