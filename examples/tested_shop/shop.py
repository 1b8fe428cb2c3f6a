"""A shop that draws a new picture of an item when its price changes, and writes to its customers."""

from dataclasses import dataclass

from rmq import Merge, PriorityMessage, Replace, RmqClient, Topic, TopicType, aio


@dataclass(frozen=True)
class Price:
    item: str
    pence: int


PICTURES = Topic("pictures", TopicType.RANGE_MERGE, payload=Price, merge=Merge(Replace()))
LETTERS = Topic("letters", TopicType.PRIORITY)


def change_price(client: RmqClient, price: Price) -> None:
    window = "5s"
    client.producer(PICTURES).send(PICTURES.message(price.item, price, time_range=window))


def handlers(client: RmqClient) -> None:
    @client.listener(PICTURES)
    def draw(price: Price) -> None:
        if price.pence <= 0:
            raise ValueError(f"{price.item} costs {price.pence}")
        client.producer(LETTERS).send(PriorityMessage(f"{price.item} is new", 5))


async def change_price_async(client: aio.RmqClient, price: Price) -> None:
    producer = await client.producer(PICTURES)
    await producer.send(PICTURES.message(price.item, price, time_range="5s"))
