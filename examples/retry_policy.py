"""Retry quickly at first, then more and more slowly; give up at once if a retry cannot help."""

from time import sleep

from rmq import Delivery, ExponentialRetry, PriorityMessage, RmqClient, Topic, TopicType

MAILS = Topic(
    "mails",
    TopicType.PRIORITY,
    max_retries=3,
    retry=ExponentialRetry(base="200ms", cap="5m"),
)

client = RmqClient()


@client.listener(MAILS)
def mail(delivery: Delivery) -> None:
    """Send a mail. The server answers at the third attempt; one address is wrong, one never gets through."""
    if delivery.text == "mail:nobody":
        delivery.bury(ValueError("there is no such address"))
    elif delivery.text == "mail:bob" or delivery.attempt < 3:
        raise TimeoutError(f"no answer to attempt {delivery.attempt}")
    else:
        print(f"{delivery.text} is sent, attempt {delivery.attempt}")


if __name__ == "__main__":
    with client:
        client.producer(MAILS).send_many(PriorityMessage(f"mail:{name}", 1) for name in ("ann", "bob", "nobody"))
        client.start()
        view = client.inspect(MAILS)
        while (now := view.stats()).backlog or now.in_flight or now.waiting:
            sleep(0.1)
        for message in client.dead(MAILS).list():
            print(f"{message.text} is dead, attempts={message.attempts}: {message.error_message}")
