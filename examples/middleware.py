"""A database transaction around each handler: a message is acked only once its changes are committed."""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from time import sleep

from rmq import Delivery, ImmediateRetry, Observer, PriorityMessage, RmqClient, Topic, TopicType

ORDERS = Topic("orders", TopicType.PRIORITY, retry=ImmediateRetry())
database: ContextVar[sqlite3.Connection] = ContextVar("database")


class Transaction(Observer):
    """Commits what a handler wrote, or rolls it back; if the commit fails, the message is retried."""

    essential = True

    @contextmanager
    def handling(self, deliveries: Sequence[Delivery]) -> Generator[None]:
        """Open a connection for the handler."""
        with closing(sqlite3.connect("shop.db")) as connection, connection:
            connection.execute("CREATE TABLE IF NOT EXISTS closed (number TEXT)")
            database.set(connection)
            yield


class Failures(Observer):
    """Tells of failed handlers, as an error tracker does."""

    def failed_handler(self, deliveries: Sequence[Delivery], error: BaseException) -> None:
        """Report an error with the message it is about."""
        print(f"{deliveries[0].text}, attempt {deliveries[0].attempt}: {error}")


client = RmqClient()
client.observers.all += [Transaction(), Failures()]


@client.listener(ORDERS)
def close(delivery: Delivery) -> None:
    """Close an order. The first attempt fails after it has written; that is rolled back."""
    database.get().execute("INSERT INTO closed VALUES (?)", (delivery.text,))
    if delivery.attempt == 1:
        raise TimeoutError("the bank did not answer")


if __name__ == "__main__":
    with client:
        client.producer(ORDERS).send(PriorityMessage("order:1", 1))
        client.start()
        while client.inspect(ORDERS).stats().total("acked") == 0:
            sleep(0.1)
        with closing(sqlite3.connect("shop.db")) as shop:
            print("closed:", shop.execute("SELECT number FROM closed").fetchall())
