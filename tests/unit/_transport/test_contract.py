"""What the header of a script says that it takes, and the placeholder that is filled in when a call is sent."""

from __future__ import annotations

import pytest

from rmq import Topic, TopicType
from rmq._admin import control as steering
from rmq._admin.calls import viewing
from rmq._broker import claims as claiming
from rmq._broker.claims import Outcomes
from rmq._io.wire import packed
from rmq._registry.shared import worker_beat
from rmq._servers.cluster_map import absent_key, hash_slot
from rmq._transport.script_library import Names, contract_of, default_scripts
from tests.support.one_slot import claim_slot, settle_slot

HEADER = """\
-- Take due messages.
--
-- KEYS[1]  store  ZSET  content -> score
-- KEYS[2]  born?  ZSET  content -> time of its last send
-- ARGV[1]  epoch      whole number; 0 without ZooKeeper
-- ARGV[2..] contents  at most 256
-- Returns: the contents taken
-- @include now
-- KEYS[3]  not a part of the header
"""


def test_a_header_names_keys_and_arguments() -> None:
    assert contract_of(HEADER) == (Names(("store",), ("born",)), Names(("epoch",), (), "contents"))
    assert contract_of("-- Take.\nreturn 1\n") == (Names(), Names())


def test_an_entry_may_be_left_out_where_its_name_has_a_question_mark() -> None:
    assert contract_of(HEADER.replace("store  ZSET", "store? ZSET"))[0] == Names((), ("store", "born"))


@pytest.mark.parametrize("sharded", [True, False])
def test_the_command_for_hints_is_filled_in_when_a_call_is_sent(sharded: bool) -> None:
    topic = Topic("t", TopicType.PRIORITY, slots=1)
    request = default_scripts().request(claim_slot(topic, 0, 10), sharded=sharded, cluster=False)
    assert (b"$8\r\nSPUBLISH\r\n" in request, b"$7\r\nPUBLISH\r\n" in request) == (sharded, not sharded)
    content = claiming.extend(topic, 0, [(b"PUBLISH", 5)])
    assert b"SPUBLISH" not in default_scripts().request(content, sharded=True, cluster=True)


def test_in_a_cluster_a_script_that_writes_to_several_keys_names_one_that_never_exists() -> None:
    topic, scripts = Topic("t", TopicType.PRIORITY, slots=1), default_scripts()
    for call, more in (
        (claim_slot(topic, 0, 10), 1),
        (claiming.extend(topic, 0, [(b"a", 5)]), 1),
        (settle_slot(topic, 0, Outcomes([(b"a", 5)])), 0),  # the channel is one of its keys
        (steering.adopt(topic, 0, "zk", ""), 0),  # a single key
        (viewing.find(topic, 0, b"a"), 0),
        (worker_beat("w", "{}", 1_000), 0),
    ):
        alone, moving = (scripts.request(call, sharded=False, cluster=cluster) for cluster in (False, True))
        names = [packed((len(call.keys) + number,)).partition(b"\r\n")[2] for number in (0, more)]
        keys = b"".join(b"$%d\r\n%s\r\n" % (len(key), key.encode()) for key in call.keys)
        absent = b"$9\r\nwake{t_0}\r\n" * more
        assert names[0] + keys in alone
        assert names[1] + keys + absent in moving
        assert len({hash_slot(key) for key in (*call.keys, absent_key(call.keys[0]))}) == 1
