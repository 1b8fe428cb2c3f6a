"""A web service that sends and consumes messages: the listeners run in its event loop while it is up.

Run: `pip install 'rmq[aio]' fastapi uvicorn`, then `uvicorn examples.fastapi_lifespan:app`, and
`curl -X POST localhost:8000/items/mug`. Set RMQ_URL to your Redis, or to `embedded://` for a temporary one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

from rmq import RangeMergeMessage, Topic, TopicType
from rmq.aio import Delivery, RmqClient

PRICE = Topic("price-image", TopicType.RANGE_MERGE, slots=8)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connect and listen while the service is up; at shutdown, let running handlers finish."""
    app.state.drawn = []
    async with RmqClient() as client:

        @client.listener(PRICE, concurrency=100)
        async def draw(delivery: Delivery) -> None:
            app.state.drawn.append(delivery.text)

        app.state.prices = await client.producer(PRICE)
        app.state.view = await client.inspect(PRICE)
        await client.start()
        yield
        await client.stop(drain_s=10)


app = FastAPI(lifespan=lifespan)


@app.post("/items/{item}")
async def price_changed(item: str, request: Request) -> dict[str, bool]:
    """Request a new picture of an item; changes within half a second share one picture."""
    result = await request.app.state.prices.send(RangeMergeMessage(item, "500ms"))
    return {"merged": result.merged == 1}


@app.get("/stats")
async def stats(request: Request) -> dict[str, int]:
    """Return the number of pictures to draw, and of those drawn."""
    now = await request.app.state.view.stats()
    return {"backlog": now.backlog, "drawn": now.total("acked")}
