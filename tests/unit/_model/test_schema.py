"""Versions of stored documents: who may act on which, and what a writer keeps."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq._io.reports import MOST_TOLD, PassedOver
from rmq._model.schema import (
    FIRST_VERSION,
    MAX_DOCUMENT_BYTES,
    SCHEMA_VERSION,
    Document,
    new_document,
    read_document,
)
from rmq.errors import UnreadableDocumentError

names = st.text(max_size=5).filter(lambda name: name not in ("version", "min_reader"))
fields = st.dictionaries(names, st.none() | st.booleans() | st.integers() | st.text())


@given(fields)
def test_there_and_back(values: dict[str, Any]) -> None:
    document = new_document(values)
    assert read_document(document.to_json(), "it") == document
    assert read_document(document.to_json().encode(), "it") == document
    assert (document.version, document.min_reader) == (SCHEMA_VERSION, FIRST_VERSION)


def test_a_newer_document_is_read_with_all_its_fields_where_it_allows_that() -> None:
    text = json.dumps({"a": 1, "new": [2], "version": 9, "min_reader": SCHEMA_VERSION})
    assert read_document(text, "it") == Document({"a": 1, "new": [2]}, 9, SCHEMA_VERSION)


def test_a_document_for_newer_readers_names_the_versions_and_what_to_do() -> None:
    text = json.dumps({"version": 9, "min_reader": 8})
    with pytest.raises(UnreadableDocumentError) as refused:
        read_document(text, "the definition of topic orders", reader=7)
    assert str(refused.value) == (
        "the definition of topic orders is for schema version 8 and newer (written with version 9), "
        "and this RMQ has version 7; upgrade this RMQ"
    )
    assert (refused.value.version, refused.value.min_reader) == (9, 8)
    assert read_document(text, "it", reader=8) == Document({}, 9, 8)


@pytest.mark.parametrize(
    "text",
    [
        "",
        b"\xff\xfe\x00",
        "[]",
        "7",
        "null",
        '"text"',
        "9" * 5_000,
        "[" * 200_000,
        '{"a":' * 100_000,
        " " * (MAX_DOCUMENT_BYTES + 1),
        '{"version": "2"}',
        '{"version": true}',
        '{"version": 0}',
        '{"version": 1' + "0" * 4_000 + "}",
        '{"version": 1.0}',
        '{"a": 1}',
        '{"version": 3, "min_reader": 1}',
        '{"version": 4, "min_reader": null}',
        '{"version": 4, "min_reader": NaN}',
        '{"version": 4, "min_reader": -1e999}',
        '{"version": 4, "min_reader": 3}',
    ],
)
def test_garbage_is_refused_in_short(text: str | bytes) -> None:
    with pytest.raises(UnreadableDocumentError, match=r"^the thing cannot be read: ") as refused:
        read_document(text, "the thing")
    assert len(str(refused.value)) < 1_000
    assert (refused.value.version, refused.value.min_reader) == (None, None)


@given(st.binary(max_size=60))
def test_no_bytes_raise_another_error(data: bytes) -> None:
    try:
        read_document(data, "it")
    except UnreadableDocumentError:
        return


def test_a_change_keeps_what_it_does_not_touch() -> None:
    stored = Document({"a": 1, "b": {"known": 2, "unknown": 3}, "c": 4, "unknown": 5})
    before, after = {"a": 1, "b": {"known": 2}, "c": 4}, {"a": 7, "b": {"known": 2}, "d": 8}
    assert stored.amended(before, after) == Document(
        {"a": 7, "b": {"known": 2, "unknown": 3}, "unknown": 5, "d": 8}, SCHEMA_VERSION
    )


def test_a_change_never_lets_in_older_readers_than_a_newer_writer_did() -> None:
    newer = Document({"a": 1}, SCHEMA_VERSION + 3, SCHEMA_VERSION + 1)
    assert newer.amended({"a": 1}, {"a": 2}) == Document({"a": 2}, SCHEMA_VERSION + 3, SCHEMA_VERSION + 1)
    own = Document({"a": 1, "b": 1}, SCHEMA_VERSION, SCHEMA_VERSION + 1)  # this version knows why: "b" needed it
    assert own.amended({"a": 1, "b": 1}, {"a": 1}) == Document({"a": 1}, SCHEMA_VERSION)


def test_what_is_passed_over_is_told_once_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    passed = PassedOver(logging.getLogger("rmq.test"))
    for reason in ("one", "one", "two", "two"):
        passed.tell("orders", UnreadableDocumentError(reason))
    assert [line.getMessage() for line in caplog.records] == ["ignored: one", "ignored: two"]


def test_what_is_passed_over_is_remembered_within_bounds(caplog: pytest.LogCaptureFixture) -> None:
    passed = PassedOver(logging.getLogger("rmq.test"))
    for number in range(MOST_TOLD + 50):
        passed.tell(f"topic-{number}", UnreadableDocumentError(f"reason {number}"))
    assert len(caplog.records) == MOST_TOLD + 1
    assert caplog.records[-1].getMessage().endswith("are not logged")


def test_a_change_within_an_object_keeps_what_it_does_not_touch_there() -> None:
    stored = Document({"retention": {"max_age_ms": 1, "max_length": 2, "max_bytes": 3}}, 9, 2)
    before, after = {"max_age_ms": 1, "max_length": 2}, {"max_age_ms": 5}
    changed = stored.amended({"retention": before}, {"retention": after})
    assert changed.fields == {"retention": {"max_age_ms": 5, "max_bytes": 3}}


def test_a_change_between_an_object_and_another_value_puts_the_value() -> None:
    assert Document({"a": {"b": 1}}).amended({"a": {"b": 1}}, {"a": 7}).fields == {"a": 7}
    assert Document({"a": 7}).amended({"a": 7}, {"a": {"b": 1}}).fields == {"a": {"b": 1}}
    assert Document({}).amended({}, {"a": {"b": 1}}).fields == {"a": {"b": 1}}
