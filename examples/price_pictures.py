"""A worker that draws an item's price when it changes. Several workers share the work; no item is drawn twice at once.

    export RMQ_URL=redis://localhost
    rmq worker price_pictures:client             # in this folder; or: python price_pictures.py
    python price_pictures.py send mug cup mug    # in another terminal: prices have changed

Pictures go to the folder `pictures`, or to $PICTURES. On SIGTERM or Ctrl-C a worker finishes its pictures and exits.
"""

from __future__ import annotations

import os
import sys
from html import escape
from pathlib import Path

from rmq import Delivery, ExponentialRetry, RangeMergeMessage, RmqClient, Topic, TopicType

PICTURES = Topic(
    "price-picture",
    TopicType.RANGE_MERGE,
    slots=8,
    retry=ExponentialRetry(base="1s", cap="5m"),
)
MERGE_WINDOW = "2s"

client = RmqClient()


@client.listener(PICTURES, threads=4)
def draw(delivery: Delivery) -> None:
    """Draw one picture. The handler is idempotent: a message may be delivered again after a crash."""
    item = delivery.text.removeprefix("item:")
    svg = f'<svg xmlns="http://www.w3.org/2000/svg"><text y="20">{escape(item)}: £{price_of(item):.2f}</text></svg>\n'
    folder = Path(os.environ.get("PICTURES", "pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{file_name(item)}.part"  # no other worker draws this item now
    unfinished.write_text(svg, encoding="utf-8")
    unfinished.replace(folder / file_name(item))


def price_of(item: str) -> float:
    """Stand in for the shop's database. The message has no price, because several changes may merge."""
    return len(item) + 0.99


def file_name(item: str) -> str:
    """Return a safe file name for an item."""
    return "".join(letter if letter.isalnum() else f"_{ord(letter):x}_" for letter in item) + ".svg"


def prices_changed(*items: str) -> None:
    """Request new pictures, as the shop does when it changes a price."""
    result = client.producer(PICTURES).send_many(RangeMergeMessage(f"item:{item}", MERGE_WINDOW) for item in items)
    print(f"{result.new} new, {result.merged} merged")


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        prices_changed(*sys.argv[2:])
    else:
        client.run()
