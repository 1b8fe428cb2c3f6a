"""A FastAPI service that sends messages, and handles them in its own event loop.

Run: `pip install 'rmq[fastapi]' uvicorn`, then `uvicorn fastapi_shop:app` in this folder, and
`curl -X POST localhost:8000/items/mug`. Set RMQ_URL to your Redis, or to `embedded://` for a temporary one.
"""

from typing import Annotated

from fastapi import Depends, FastAPI

from rmq import RangeMergeMessage, Topic, TopicType
from rmq.adapters.fastapi import Rmq
from rmq.aio import Delivery, Producer, RmqClient

PRICE = Topic("price-image", TopicType.RANGE_MERGE, slots=8)

rmq = Rmq()  # or Rmq("redis://..."), else RMQ_URL
app = FastAPI(lifespan=rmq.lifespan)

Prices = Annotated[Producer, Depends(rmq.producer(PRICE))]
Client = Annotated[RmqClient, Depends(rmq.client)]

drawn: list[str] = []


@app.post("/items/{item}")
async def price_changed(item: str, prices: Prices) -> dict[str, bool]:
    """Request a new picture of an item."""
    result = await prices.send(RangeMergeMessage(item, "500ms"))
    return {"merged": result.merged == 1}


@rmq.listener(PRICE, concurrency=100)
async def draw(delivery: Delivery) -> None:
    """Draw the picture of an item."""
    drawn.append(delivery.text)


@app.get("/stats")
async def stats(client: Client) -> dict[str, int]:
    """Return the number of pictures to draw, and of those drawn."""
    now = await (await client.inspect(PRICE)).stats()
    return {"backlog": now.backlog, "drawn": now.total("acked")}
