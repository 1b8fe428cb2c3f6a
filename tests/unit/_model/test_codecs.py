"""Codecs: each payload comes back, JSON is the same with and without msgspec, and what is no payload is refused."""

from __future__ import annotations

import json
import math
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from unittest import mock
from uuid import UUID

import msgspec
import pydantic
import pytest
import zstandard
from cryptography.fernet import Fernet
from hypothesis import given
from hypothesis import strategies as st
from pydantic.dataclasses import dataclass as pydantic_dataclass

from rmq import Codec, EncryptedCodec, InvalidValueError, JsonCodec, MsgpackCodec, ZstdCodec
from rmq._model import codecs


class Tier(Enum):
    GOLD = "gold"
    FREE = "free"


@dataclass(frozen=True)
class Line:
    sku: str
    pence: int


@dataclass
class Price:
    item: str
    amount: Decimal = Decimal("1.50")
    ratio: float = 1.0
    tier: Tier = Tier.FREE
    when: datetime | None = None
    day: date = date(2026, 1, 2)
    at: time = time(3, 4)
    id: UUID = field(default_factory=lambda: UUID(int=7))
    raw: bytes = b"\x00\xff"
    lines: list[Line] = field(default_factory=list[Line])
    pair: tuple[int, str] = (1, "a")
    tags: frozenset[str] = frozenset()
    by_name: dict[str, Line] = field(default_factory=dict[str, Line])
    kind: Literal["new", "old"] = "new"
    any: Any = None
    before: Price | None = None


class StructPrice(msgspec.Struct, frozen=True):
    item: str
    pence: int


class ModelPrice(pydantic.BaseModel):
    item: str
    pence: int
    when: datetime | None = None


class AliasPrice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    pence: int = pydantic.Field(alias="p")
    read_as: int = pydantic.Field(1, validation_alias="in")
    written_as: int = pydantic.Field(2, serialization_alias="out")
    extra: pydantic.Json[list[int]] = pydantic.Field([], validate_default=False)

    @pydantic.computed_field
    @property
    def pounds(self) -> float:
        return self.pence / 100


class StrictPrice(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, ser_json_bytes="base64", val_json_bytes="base64")

    when: datetime
    raw: bytes
    before: AliasPrice | None = None
    ratio: float = 1.0


@pydantic_dataclass
class CheckedPrice:
    item: str
    pence: int


FULL = Price(
    "mug",
    when=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    lines=[Line("a", 1)],
    tags=frozenset({"x"}),
    by_name={"k": Line("b", 2)},
    before=Price("cup"),
)
PAYLOADS = [
    FULL,
    StructPrice("mug", 5),
    ModelPrice(item="mug", pence=5, when=datetime(2026, 1, 2, tzinfo=UTC)),
    CheckedPrice("mug", 5),
    AliasPrice.model_validate({"p": 5, "extra": "[1, 2]"}),
    StrictPrice(when=datetime(2026, 1, 2, tzinfo=UTC), raw=b"\x00\xff", before=AliasPrice.model_validate({"p": 5})),
]
KEYS = [Fernet.generate_key() for _ in range(2)]
CODECS: list[Codec] = [
    JsonCodec(),
    MsgpackCodec(),
    ZstdCodec(),
    ZstdCodec(MsgpackCodec(), level=19),
    EncryptedCodec(KEYS),
    EncryptedCodec(KEYS, ZstdCodec()),
]


@pytest.fixture
def without_msgspec() -> Iterator[None]:
    with mock.patch.object(codecs, "_msgspec", return_value=None):
        yield


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_each_payload_comes_back(codec: Codec, payload: object) -> None:
    body = codec.encoder(type(payload))(payload)
    assert isinstance(body, bytes)
    assert codec.decoder(type(payload))(body) == payload


@given(
    st.builds(
        Price,
        item=st.text(),
        amount=st.decimals(allow_nan=False, allow_infinity=False),
        ratio=st.floats(allow_nan=False, allow_infinity=False),
        when=st.none() | st.datetimes(timezones=st.just(UTC)) | st.datetimes(),
        day=st.dates(),
        at=st.times(),
        id=st.uuids(),
        raw=st.binary(),
        lines=st.lists(st.builds(Line)),
        by_name=st.dictionaries(st.text(), st.builds(Line, pence=st.integers(-(2**63), 2**63 - 1))),
        any=st.none() | st.booleans() | st.lists(st.integers(0, 9)),
    )
)
def test_json_is_read_by_programs_with_and_without_msgspec(price: Price) -> None:
    written = codecs.encode_plain_json(price), msgspec.json.encode(price)
    assert json.loads(written[0]) == json.loads(written[1])
    for body in written:
        assert codecs.plain_json_decoder(Price)(body) == msgspec.json.decode(body, type=Price) == price


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Expecting value"),
        (b"[1]", "Expected `object`, got `array` - at `$`"),
        (b"{}", "Object missing required field `item` - at `$`"),
        (b'{"item":1}', "Expected `str`, got `int` - at `$.item`"),
        (b'{"item":"a","ratio":true}', "Expected `float`, got `bool` - at `$.ratio`"),
        (b'{"item":"a","ratio":NaN}', "NaN is not JSON"),
        (b'{"item":"a","amount":"x"}', "Invalid Decimal 'x' - at `$.amount`"),
        (b'{"item":"a","amount":[]}', "Expected `Decimal`, got `array` - at `$.amount`"),
        (b'{"item":"a","tier":"lead"}', "Invalid enum value 'lead' - at `$.tier`"),
        (b'{"item":"a","kind":"x"}', "Invalid value 'x' - at `$.kind`"),
        (b'{"item":"a","pair":[1]}', "Expected `array` of length 2, got 1 - at `$.pair`"),
        (b'{"item":"a","tags":"x"}', "Expected `array`, got `str` - at `$.tags`"),
        (b'{"item":"a","by_name":[]}', "Expected `object`, got `array` - at `$.by_name`"),
        (b'{"item":"a","lines":[{"sku":"s","pence":"p"}]}', "Expected `int`, got `str` - at `$.lines[0].pence`"),
        (b'{"item":"a","when":5}', "Expected `datetime`, got `int` - at `$.when` or: Expected `null`"),
        (b'{"item":"a","raw":"*"}', "Invalid bytes '*' - at `$.raw`"),
    ],
)
def test_what_is_no_payload_is_refused_without_msgspec_too(body: bytes, reason: str, without_msgspec: None) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        JsonCodec().decoder(Price)(body)
    assert str(caught.value).startswith(reason)
    with pytest.raises(Exception):  # noqa: B017, PT011 - msgspec's own
        msgspec.json.decode(body, type=Price)


def test_unknown_fields_are_passed_over(without_msgspec: None) -> None:
    body = b'{"sku":"a","pence":1,"colour":"red"}'
    assert JsonCodec().decoder(Line)(body) == msgspec.json.decode(body, type=Line) == Line("a", 1)


def test_numbers_are_decimals_too(without_msgspec: None) -> None:
    body = b'{"item":"a","amount":1.25}'
    assert JsonCodec().decoder(Price)(body) == msgspec.json.decode(body, type=Price) == Price("a", Decimal("1.25"))


def test_a_type_that_needs_msgspec_is_refused_before_anything_is_read(without_msgspec: None) -> None:
    @dataclass
    class Counts:
        by_number: dict[int, int]

    with pytest.raises(TypeError, match="pip install 'rmq\\[msgspec\\]"):
        JsonCodec().decoder(Counts)


def test_plain_json_refuses_what_json_cannot_hold() -> None:
    with pytest.raises(TypeError, match="object of type object cannot be represented in JSON"):
        codecs.encode_plain_json(Price("a", any=object()))
    with pytest.raises(ValueError, match="not JSON compliant"):
        codecs.encode_plain_json(Price("a", ratio=float("nan")))


def test_a_key_that_was_replaced_still_decrypts_and_another_one_does_not() -> None:
    old, new, foreign = KEYS[0], KEYS[1], Fernet.generate_key()
    body = EncryptedCodec([old]).encoder(Line)(Line("a", 1))
    assert b"sku" not in body
    assert EncryptedCodec([new, old]).decoder(Line)(body) == Line("a", 1)
    with pytest.raises(ValueError, match="not encrypted with any of the keys"):
        EncryptedCodec([foreign]).decoder(Line)(body)
    with pytest.raises(ValueError, match="or was changed"):
        EncryptedCodec([old]).decoder(Line)(body[:-4] + b"AAA=")


@pytest.mark.parametrize("keys", [[], "short", [b"x" * 44]])
def test_wrong_keys_are_refused_and_not_shown(keys: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"Fernet\.generate_key") as caught:
        EncryptedCodec(keys)
    assert "xxxx" not in str(caught.value)
    assert KEYS[0].decode() not in repr(EncryptedCodec(KEYS[0]))


@pytest.mark.parametrize("codec", [EncryptedCodec(KEYS), EncryptedCodec(KEYS, ZstdCodec(MsgpackCodec()))], ids=repr)
def test_the_reason_why_an_encrypted_body_does_not_decode_shows_nothing_of_it(codec: Codec) -> None:
    body = codec.encoder(Line)(Line("4111 secret", 5))
    with pytest.raises(ValueError, match="ValidationError after decryption") as caught:
        codec.decoder(pydantic.create_model("Other", sku=(int, ...)))(body)
    seen = "".join(traceback.format_exception(caught.value))
    assert "4111" not in seen.replace(repr(body), "")
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "payload", [Price("a", ratio=math.nan), StrictPrice(when=datetime(2026, 1, 2), raw=b"", ratio=math.inf)]
)
def test_json_of_a_number_that_is_none_is_refused_before_it_is_sent(payload: object) -> None:
    with pytest.raises(ValueError, match="ratio"):
        JsonCodec().encoder(type(payload))(payload)


def test_a_small_body_that_unpacks_to_a_large_one_is_refused() -> None:
    text = b'{"sku":"' + b"a" * codecs.MAX_INFLATED_BYTES + b'","pence":1}'
    body = zstandard.ZstdCompressor().compress(text)
    assert len(body) < 1_000_000
    with pytest.raises(ValueError, match="after decompression exceed the maximum of 67108864"):
        ZstdCodec().decoder(Line)(body)


def test_a_payload_that_no_handler_would_unpack_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ValueError, match="before compression exceed the maximum of 67108864"):
        ZstdCodec().encoder(Line)(Line("a" * codecs.MAX_INFLATED_BYTES, 1))


@pytest.mark.parametrize("level", [0, 23, True, "3"])
def test_levels_of_compression(level: Any) -> None:
    with pytest.raises(InvalidValueError, match="level is"):
        ZstdCodec(level=level)


@pytest.mark.parametrize(
    ("make", "extra"), [(MsgpackCodec, "msgspec"), (ZstdCodec, "zstd"), (EncryptedCodec, "encryption")]
)
def test_a_missing_package_is_named_when_a_codec_is_made(make: Any, extra: str) -> None:
    with mock.patch.object(codecs, "import_module", side_effect=ModuleNotFoundError):
        with pytest.raises(ModuleNotFoundError, match=rf"pip install 'rmq\[{extra}\]"):
            make(KEYS) if make is EncryptedCodec else make()
