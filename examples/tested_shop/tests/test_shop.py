from datetime import timedelta

import pytest
import shop

from rmq import RmqClient
from rmq.testing import Clock, assert_not_sent, assert_sent, run_at_most, run_until_empty


def test_a_change_waits_for_more_changes(rmq: RmqClient, rmq_clock: Clock) -> None:
    shop.change_price(rmq, shop.Price("mug", 399))
    shop.change_price(rmq, shop.Price("mug", 349))
    message = assert_sent(rmq, shop.PICTURES, "mug", payload=shop.Price("mug", 349))
    assert message.merged == 2
    assert message.due == rmq_clock.now + timedelta(seconds=5)


def test_a_picture_is_drawn_and_a_letter_written(rmq: RmqClient, rmq_clock: Clock) -> None:
    shop.handlers(rmq)
    shop.change_price(rmq, shop.Price("mug", 399))
    run_until_empty(rmq)  # nothing is due yet
    assert_not_sent(rmq, shop.LETTERS)
    rmq_clock.advance("5s")
    run_until_empty(rmq)
    assert_sent(rmq, shop.LETTERS, "mug is new", priority=5)


def test_a_wrong_price_is_an_error(rmq: RmqClient, rmq_clock: Clock) -> None:
    shop.handlers(rmq)
    shop.change_price(rmq, shop.Price("mug", -1))
    with pytest.raises(ValueError, match="mug costs -1"):
        run_until_empty(rmq, clock=rmq_clock)


def test_a_wrong_price_is_dead_in_the_end(rmq: RmqClient, rmq_clock: Clock) -> None:
    shop.handlers(rmq)
    shop.change_price(rmq, shop.Price("mug", -1))
    ran = run_until_empty(rmq, clock=rmq_clock, raises=False)
    assert (ran.acked, ran.nacked) == (0, 17)
    assert [dead.error_message for dead in rmq.dead(shop.PICTURES).list()] == ["mug costs -1"]


def test_one_picture_at_a_time(rmq: RmqClient, rmq_clock: Clock) -> None:
    shop.handlers(rmq)
    for item in ("mug", "cup"):
        shop.change_price(rmq, shop.Price(item, 399))
    assert run_at_most(rmq, 1, clock=rmq_clock).acked == 1
    assert rmq.inspect(shop.PICTURES).stats().backlog == 1


def test_a_client_of_the_code_finds_the_same_server(rmq: RmqClient) -> None:
    with RmqClient() as own:  # by RMQ_URL
        shop.change_price(own, shop.Price("mug", 399))
    assert_sent(rmq, shop.PICTURES, "mug")
