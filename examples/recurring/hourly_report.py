"""A report of each hour, which knows its hour also after a standstill."""

from datetime import UTC, datetime

from rmq import Schedule, Topic, TopicType
from rmq.testing import Server, run_schedules, run_until_empty

REPORTS = Topic("reports", TopicType.FIXED_TIME)
HOURLY = Schedule("report", REPORTS, "report:{scheduled}", every="1h", catch_up=True, body="{scheduled}")

with Server() as server, server.client() as client:
    clock = server.clock()

    @client.listener(REPORTS)
    def report(delivery):
        until = datetime.fromisoformat(delivery.body.decode())
        print(f"report of the hour until {until:%H:%M}")

    clock.move_to(datetime(2037, 5, 4, 6, 40, tzinfo=UTC))
    print(client.schedules.put(HOURLY).value, client.schedules.put(HOURLY).value)
    clock.advance("3h")  # all workers are down
    run_schedules(client)
    run_until_empty(client, clock=clock)
    [info] = client.schedules.list()
    print(f"next at {info.next:%H:%M}")
