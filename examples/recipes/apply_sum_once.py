"""Apply sums once: a delivery that is repeated after a crash may have a larger sum; apply only the difference."""

import sqlite3

from rmq import Delivery, Fixed, ImmediateRetry, Merge, RangeMergeMessage, RmqClient, Sum, Topic, TopicType

SUMS = Merge(Sum(), window=Fixed("1s"))
STOCK = Topic("stock-in-database", TopicType.RANGE_MERGE, slots=8, retry=ImmediateRetry(), merge=SUMS)
database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE stock (item PRIMARY KEY, pieces, first_sent_ms, applied)")
database.execute("INSERT INTO stock VALUES ('item:mug', 100, 0, 0)")


def apply(delivery: Delivery) -> None:
    """Add what a delivery brings; a value that came before has the same first send."""
    with database:
        same = "SELECT applied FROM stock WHERE item = ? AND first_sent_ms = ?"
        (applied,) = database.execute(same, (delivery.text, delivery.first_sent_ms)).fetchone() or (0,)
        database.execute(
            "UPDATE stock SET pieces = pieces + ?, first_sent_ms = ?, applied = ? WHERE item = ?",
            (delivery.value - applied, delivery.first_sent_ms, delivery.value, delivery.text),
        )


with RmqClient("embedded://") as client:
    producer, consumer = client.producer(STOCK), client.consumer(STOCK)
    for pieces, crash in ((-4, True), (10, False)):
        producer.send(RangeMergeMessage("item:mug", body=pieces))
        for delivery in consumer.poll(timeout=10):
            apply(delivery)
            print(f"{delivery.text}: {delivery.value:+}", *database.execute("SELECT pieces FROM stock").fetchone())
            delivery.nack(error="crashed before the ack") if crash else delivery.ack()
