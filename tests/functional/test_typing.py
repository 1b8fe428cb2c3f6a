"""Type checkers see a payload's class from the message to the handler: mypy and basedpyright on small programs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

HEAD = """
from dataclasses import dataclass
from rmq import Delivery, DeliveryColumns, RmqClient, StreamDelivery, Topic, TopicType, aio, listener
from rmq.testing import assert_sent, run_at_most, run_until_empty, sent

@dataclass
class Price:
    item: str

@dataclass
class Order:
    number: int

price = Topic("price", TopicType.RANGE_MERGE, payload=Price)
plain = Topic("plain", TopicType.RANGE_MERGE)
client = RmqClient()
client_ = aio.RmqClient()
"""

GOOD = f"""{HEAD}
reveal_type(price)  # Topic[Price]
reveal_type(plain)  # Topic[Any]
reveal_type(price.decode(b""))  # Price
reveal_type(price.changed(max_retries=1))  # Topic[Price]
reveal_type(client.consumer(price).poll()[0].payload)  # Price
reveal_type(client.consumer(plain).poll()[0].payload)  # Any
client.producer(price).send(price.message("k", Price("mug"), time_range="5ms"))

def takes(topic: Topic, delivery: Delivery) -> None: ...

@client.listener(price)
def payload(price: Price) -> None: ...

@client.listener(price)
def both(price: Price, delivery: Delivery[Price]) -> int:
    takes(delivery.topic, delivery)
    reveal_type(delivery.payload)  # Price
    return 1

@client.listener(price)
def turned(delivery: Delivery[Price], price: Price) -> None: ...

@client.listener(price)
def bare(delivery: Delivery) -> None: ...

@client.listener(price, batch=5)
def many(prices: list[Price]) -> None: ...

@client.listener(price, batch=5)
def deliveries(batch: list[Delivery[Price]]) -> None: ...

@client.listener(price, batch=5, columns=True)
def columns(batch: DeliveryColumns) -> None: ...

@client.listener(plain)
def untyped(delivery: Delivery) -> None: ...

@client.listener(plain, batch=5)
def untyped_many(batch: list[Delivery]) -> None: ...

@listener(price)
def found(price: Price, delivery: Delivery[Price]) -> None: ...

@client_.listener(price)
async def async_payload(price: Price) -> None: ...

@client_.listener(price)
async def async_both(price: Price, delivery: aio.Delivery[Price]) -> None:
    reveal_type(delivery.payload)  # Price
    await delivery.ack()

@client_.listener(price, batch=5)
async def async_many(prices: list[Price]) -> None: ...

async def pull() -> None:
    consumer = await client_.consumer(price)
    reveal_type((await consumer.poll())[0].payload)  # Price

both(Price("mug"), client.consumer(price).poll()[0])

reveal_type(run_until_empty(client))  # Ran
reveal_type(run_at_most(client, 1))  # Ran
reveal_type(assert_sent(client, price, payload=Price("mug")).payload)  # Price
reveal_type(sent(client, price)[0].payload)  # Price

async def test() -> None:
    reveal_type(await run_until_empty(client_))  # Ran
    reveal_type((await assert_sent(client_, price)).payload)  # Price
"""

WRONG = f"""{HEAD}
price.message("k", Order(1))  # error
price.encode("mug")  # error
price.message("k", Price("mug"), time_rnage=5)  # error
number: int = price.decode(b"")  # error

@client.listener(price)  # error
def order(order: Order) -> None: ...

@client.listener(price, batch=5)  # error
def orders(orders: list[Order]) -> None: ...

@client.listener(price)  # error
def other(delivery: Delivery[Order]) -> None: ...

@client_.listener(price)  # error
async def async_order(order: Order) -> None: ...

@client_.listener(price)  # error
def no_async(price: Price) -> None: ...

def read(delivery: Delivery[Price]) -> None:
    delivery.payload.colour  # error

assert_sent(client, price, payload=Order(1))  # error
run_until_empty(client_).acked  # error
"""


def mypy(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of what mypy says."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--cache-dir",
        str(path.parent / "cache"),
    ]
    done = subprocess.run(
        [*command, "--follow-imports", "silent", str(path)], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    for line in done.stdout.splitlines():
        found = re.match(r".*?:(\d+): (error|note): (.*)", line)
        assert found is not None, done.stdout + done.stderr
        yield int(found[1]), found[2], found[3]


def basedpyright(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, kind and text of what basedpyright says."""
    (path.parent / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "standard", "venvPath": str(ROOT), "venv": ".venv", "extraPaths": [str(ROOT)]})
    )
    command = [str(Path(sys.executable).parent / "basedpyright"), "--outputjson", "--project", str(path.parent)]
    done = subprocess.run([*command], capture_output=True, text=True, timeout=110)
    for each in json.loads(done.stdout)["generalDiagnostics"]:
        yield each["range"]["start"]["line"] + 1, each["severity"], each["message"]


CHECKERS = {"mypy": mypy, "basedpyright": basedpyright}


def marked(program: str, mark: str) -> dict[int, str]:
    """Return the lines of a program with a comment that begins so, and what it says."""
    lines = enumerate(program.splitlines(), 1)
    return {number: line.rpartition("  # ")[2] for number, line in lines if mark in line}


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_payload_is_seen_from_send_to_handler(checker: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(GOOD)
    said = list(CHECKERS[checker](path))
    assert [each for each in said if each[1] not in ("note", "information")] == []
    revealed = {
        line: re.sub(r"\b(?:\w+\.)+(?=\w)", "", re.findall(r'"([^"]+)"', text)[-1])
        for line, _, text in said
        if re.search(r"Revealed type|Type of", text)
    }
    assert revealed == marked(GOOD, "reveal_type(")


@pytest.mark.parametrize("checker", CHECKERS)
def test_another_class_is_an_error(checker: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(WRONG)
    wrong = {line for line, kind, _ in CHECKERS[checker](path) if kind == "error"}
    expected = set(marked(WRONG, "# error"))
    # mypy says it at the function, basedpyright at its decorator
    decorated = {number for number in expected if WRONG.splitlines()[number - 1].startswith("@")}
    assert {line - 1 if line - 1 in decorated else line for line in wrong} == expected
