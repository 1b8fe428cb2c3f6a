"""A nightly job across both changes of clocks of a year, on a clock that a test moves."""

from datetime import datetime
from zoneinfo import ZoneInfo

from rmq import Schedule, Topic, TopicType
from rmq.testing import Server, run_schedules, run_until_empty

BERLIN = ZoneInfo("Europe/Berlin")
CLOSING = Topic("closing", TopicType.FIXED_TIME)
NIGHTLY = Schedule("close-orders", CLOSING, "close-orders", cron="30 2 * * *", tz="Europe/Berlin", body="{scheduled}")

with Server() as server, server.client() as client:
    clock = server.clock()

    @client.listener(CLOSING)
    def close(delivery):
        print("close the orders of", delivery.body.decode())

    for month, day in ((3, 28), (10, 24)):
        clock.move_to(datetime(2037, month, day, 12, tzinfo=BERLIN))
        client.schedules.put(NIGHTLY)
        for _ in range(2 * 24 * 4):  # two days, in quarters of an hour
            clock.advance("15m")
            run_schedules(client)
            run_until_empty(client, clock=clock)
        client.schedules.remove("close-orders")
