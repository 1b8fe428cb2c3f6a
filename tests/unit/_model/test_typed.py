"""Topics with a payload class: what they take, what they send, and that Redis knows nothing of it."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest
from cryptography.fernet import Fernet

from rmq import (
    PER_MESSAGE,
    Collect,
    EncryptedCodec,
    FixedTimeMessage,
    InvalidMessageError,
    InvalidTopicError,
    InvalidValueError,
    JoinMessage,
    JsonCodec,
    Max,
    Merge,
    PayloadError,
    PriorityMessage,
    RangeMergeMessage,
    StreamMessage,
    Topic,
    TopicType,
    ZstdCodec,
)
from rmq._model.messages import Message


@dataclass
class Price:
    item: str
    pence: int


class Model(pydantic.BaseModel):
    item: str
    pence: int


BODY = b'{"item":"mug","pence":5}'
MUG = Price("mug", 5)
JOINS = Merge(Collect(unique=True), max_count=PER_MESSAGE)


def topic(type: TopicType = TopicType.RANGE_MERGE, **settings: Any) -> Topic[Price]:
    return Topic("price", type, payload=Price, **settings)


@pytest.mark.parametrize(
    ("made", "options", "expected"),
    [
        (topic(), {"time_range": "50ms"}, RangeMergeMessage("k", time_range_ms=50, body=BODY)),
        (topic(TopicType.PRIORITY), {"priority": 3, "slot_basis": "b"}, PriorityMessage("k", 3, "b", BODY)),
        (topic(TopicType.FIXED_TIME), {"fixed_time_ms": 99}, FixedTimeMessage("k", fixed_time_ms=99, body=BODY)),
        (topic(TopicType.FIXED_TIME), {"delay": "9s"}, FixedTimeMessage("k", delay="9s", body=BODY)),
        (topic(TopicType.STREAM), {"id": "1-1"}, StreamMessage("k", body=BODY, id="1-1")),
        (topic(merge=JOINS), {"of": 2, "time_range_ms": 9}, JoinMessage("k", BODY, 2, time_range_ms=9)),
    ],
)
def test_a_message_is_of_the_class_that_the_topic_takes(
    made: Topic[Price], options: dict[str, Any], expected: Message
) -> None:
    assert made.message("k", MUG, **options) == expected


@pytest.mark.parametrize(
    ("made", "options", "rule"),
    [
        (
            topic(),
            {"priority": 3},
            "a message of type RANGE_MERGE of topic price got an unexpected",
        ),
        (topic(TopicType.PRIORITY), {}, "needs priority="),
        (topic(TopicType.STREAM), {"time_range": 3}, "a message of type STREAM of topic price got an unexpected"),
        (topic(), {"body": b""}, "got multiple values for keyword argument 'body'"),
    ],
)
def test_options_of_other_messages_are_refused(made: Topic[Price], options: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        made.message("k", MUG, **options)
    assert rule in str(caught.value)


def test_a_payload_of_another_class_is_refused() -> None:
    other: Any = Model(item="mug", pence=5)
    with pytest.raises(InvalidMessageError, match="has payloads of class Price"):
        topic().encode(other)
    with pytest.raises(InvalidMessageError, match="topic plain has no payload class"):
        Topic("plain", TopicType.STREAM).message("k", MUG)


def test_a_payload_that_cannot_be_encoded_says_why() -> None:
    price: Any = Price("mug", object())  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidMessageError, match=r"cannot be encoded for topic price: .*object"):
        topic().encode(price)


@pytest.mark.parametrize("secret", [Price("4929 1234", object()), Model.model_construct(item="4929 1234", pence=1)])  # pyright: ignore[reportArgumentType]
def test_errors_show_nothing_of_a_payload_that_is_to_be_encrypted(secret: Any) -> None:
    made = topic(codec=EncryptedCodec([Fernet.generate_key()]))
    for attempt in (lambda: made.encode(secret), lambda: made.message("k", secret, time_range_ms=1)):
        with pytest.raises(InvalidMessageError) as caught:
            attempt()
        assert type(secret).__name__ in str(caught.value)
        assert "4929" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("kind", [Price, Model])
def test_a_body_that_does_not_decode_says_why_in_one_line(kind: Any) -> None:
    made = Topic("price", TopicType.STREAM, payload=kind)
    assert made.decode(BODY).pence == 5
    with pytest.raises(PayloadError) as caught:
        made.decode(b'{"item":"mug","pence":"many"}')
    assert str(caught.value).startswith(f"the body cannot be decoded as {kind.__name__}: ")
    assert "pence" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(PayloadError, match="the message has no body; topic price needs one, which holds a payload"):
        made.decode(None)
    with pytest.raises(PayloadError, match=f"the body cannot be decoded as {kind.__name__}: "):
        made.decode(b"\xff" * 10_000)


def test_a_topic_without_a_payload_class_decodes_nothing() -> None:
    with pytest.raises(InvalidValueError, match=r"set one: Topic\(\.\.\., payload=Price\)"):
        Topic("plain", TopicType.STREAM).decode(BODY)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"payload": int}, "it must be a dataclass, a msgspec struct or a pydantic model"),
        ({"payload": MUG}, "it must be a dataclass, a msgspec struct or a pydantic model"),
        ({"codec": JsonCodec()}, "a codec needs a payload class, too"),
        ({"payload": Price, "merge": Merge(Max())}, "keeps a number and takes no payload class"),
        ({"payload": Price, "codec": object()}, "which the codec does not take"),
    ],
)
def test_what_a_topic_refuses(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidTopicError, match=rule):
        Topic("price", TopicType.RANGE_MERGE, **settings)


def test_a_field_that_no_codec_reads_is_refused_with_the_topic() -> None:
    @dataclass
    class Odd:
        what: complex

    with pytest.raises(InvalidTopicError, match="payload of topic odd is Odd, which the codec does not take"):
        Topic("odd", TopicType.STREAM, payload=Odd)


def test_the_payload_class_is_no_part_of_what_is_stored_or_compared() -> None:
    typed, plain = topic(codec=ZstdCodec()), Topic("price", TopicType.RANGE_MERGE)
    assert typed.to_json() == plain.to_json()
    assert typed == plain
    assert hash(typed) == hash(plain)
    assert plain.with_payload_of(typed).payload is Price
    assert plain.with_payload_of(typed).codec == ZstdCodec()
    assert typed.changed(max_retries=2).payload is Price
    assert pickle.loads(pickle.dumps(typed)).payload is Price


@pytest.mark.parametrize("setting", ["payload", "codec"])
def test_a_change_of_the_registered_settings_names_no_payload(setting: str) -> None:
    with pytest.raises(InvalidTopicError, match=f"{setting} of topic price is not stored in Redis"):
        topic().changed(**{setting: None})


def test_an_error_without_a_readable_text_is_a_payload_error_too() -> None:
    class UnreadableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    class Failing:
        def encoder(self, kind: type) -> Any:
            return lambda payload: b"x"

        def decoder(self, kind: type) -> Any:
            def decode(body: bytes) -> Any:
                raise UnreadableError

            return decode

    topic = Topic("prices", TopicType.STREAM, payload=Price, codec=Failing())
    with pytest.raises(PayloadError, match="the body cannot be decoded as Price: UnreadableError"):
        topic.decode(b"x")
