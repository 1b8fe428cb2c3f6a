"""Two jobs a night, the second one after the first has succeeded."""

from datetime import UTC, datetime

from rmq import FixedTimeMessage, Schedule, Topic, TopicType
from rmq.testing import Server, run_schedules, run_until_empty

IMPORTS = Topic("imports", TopicType.FIXED_TIME)
INVOICES = Topic("invoices", TopicType.FIXED_TIME)
NIGHTLY = Schedule("import", IMPORTS, "{scheduled}", cron="0 1 * * *")

with Server() as server, server.client() as client:
    clock, invoices = server.clock(), client.producer(INVOICES)

    @client.listener(IMPORTS)
    def load(delivery):
        print(f"import of {delivery.text}, attempt {delivery.attempt}")
        if delivery.attempt == 1:
            raise ConnectionError("the bank does not answer")
        # the same content as the import: a repeated import merges with what it has sent before
        invoices.send(FixedTimeMessage(delivery.content, delay="0s"))

    @client.listener(INVOICES)
    def write(delivery):
        print(f"invoices of {delivery.text}")

    clock.move_to(datetime(2037, 5, 4, 12, tzinfo=UTC))
    client.schedules.put(NIGHTLY)
    clock.advance("13h")
    run_schedules(client)
    run_until_empty(client, clock=clock, raises=False)
