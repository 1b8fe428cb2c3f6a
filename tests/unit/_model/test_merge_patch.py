"""The examples of RFC 7396, appendix A."""

from __future__ import annotations

import copy
import json
from functools import reduce
from typing import Any

import pytest

from rmq import json_merge_patch

EXAMPLES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), EXAMPLES)
def test_the_examples_of_the_rfc(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(target)
    assert json_merge_patch(target, json.dumps(patch).encode()) == result
    assert json_merge_patch(target, patch) == result
    assert target == before
    patched = json_merge_patch(json.dumps(target).encode(), json.dumps(patch).encode())
    assert type(patched) is bytes
    assert json.loads(patched) == result


def test_patches_fold_onto_a_document() -> None:
    patches = [b'{"price":3}', b'{"name":"\xc3\xa4"}', b'{"price":null}']
    assert reduce(json_merge_patch, patches) == b'{"name":"\xc3\xa4"}'
    assert reduce(json_merge_patch, patches, {"stock": 1}) == {"stock": 1, "name": "ä"}


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        json_merge_patch({}, b"nonsense")
