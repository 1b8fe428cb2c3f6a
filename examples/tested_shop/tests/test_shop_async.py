import pytest
import shop

from rmq import aio
from rmq.testing import Clock, assert_sent, run_until_empty


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_async_handlers_run_here_and_now(rmq_aio: aio.RmqClient, rmq_clock: Clock) -> None:
    drawn: list[shop.Price] = []
    async with rmq_aio:

        @rmq_aio.listener(shop.PICTURES)
        async def draw(price: shop.Price) -> None:
            drawn.append(price)

        await shop.change_price_async(rmq_aio, shop.Price("mug", 399))
        await assert_sent(rmq_aio, shop.PICTURES, "mug")
        rmq_clock.advance("5s")
        await run_until_empty(rmq_aio)
    assert drawn == [shop.Price("mug", 399)]
