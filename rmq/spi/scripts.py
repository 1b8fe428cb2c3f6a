"""The names for an extension that runs scripts of its own on the keys of RMQ, as `rmq.spark` does.

As with `rmq.spi`, a release may change them. Each name is documented where it is defined. In short:

Connections, calls and scripts:
    `Connections` carries out `Call`s, several in a `Dispatch`; `call_slots` and `call_in_parts` make one call a slot,
    or one a part. A `BoundScript` builds calls of a script by the names in its header, with a `refusal` for each of its
    errors; `ScriptLibrary` assembles scripts, `RpcId` numbers calls that count once. `parse_url`, `Durability` and
    `parse_durability` for options; `Audit` notes who did something, `confirm_all` waits for replicas.
Keys:
    `slot_keys`, `group_keys`, `query_keys`, `sent_key`, `write_rate_key`.
Definitions:
    `Registry` reads and registers them. `is_name`, `is_chroot`, `is_id`, `checked_group` and `position` check options;
    `same_merging` compares; `MAX_SLOTS` and `MAX_COUNT` are bounds.
What is sent:
    `Encoder` checks messages and columns of a topic, and makes `Rows` of `EncodedMessage`s in a `Batch` a slot
    (`slots_of`, `gathered`, `payload_bytes`). `send_calls` sends one; a `Pipeline` keeps a round of calls under way to
    each server, in `RoundLimits` and `BATCH_BYTES`; `blocks`, `send_patiently` and `wait_for_room` for topics whose
    sends wait. `take_from` asks for a rate of the whole cluster.
Records of messages that merge:
    `read_record`, `write_record`, `fold`; bodies with a trace context `wrap` and `unwrap`, which begin with
    `TRACE_MARK`. `BODIES`, `NUMBERS` and `ITEMS` are the kinds of merges, `MAX_WHOLE` is
    the largest whole number.
What is claimed:
    `queue_claims` builds claims and settlements of `ClaimPart`s, of up to `MAX_BATCH` messages and `CLAIM_BYTES`, or
    `NACK_BATCH` nacks; `QueueBroker` has all calls of a topic. `claim_order_of`, `score_of`, `ages_for`, `meaning_of`
    and `priority_of` read scores. `look_at_queue` and `look_at_stream` ask when slots are due, a `WakeupSubscriber`
    hears when they become so. `describe` returns an error in words.
What is there:
    `queue_stats`, `group_stats`, `read_stream`, `join_stream`; `list_dead`,
    `dead_message`, `redrive_dead`, `new_score`. `SparkQueries` holds the reports of queries, one every `REPORT_S`.
Owners of slots:
    `OwnershipFollower` with a `RedisCoordinator` or ZooKeeper's; `HandoverGate` says when a slot may be claimed;
    `NO_OWNER`. `take_lock` and `Lock` for one process of several.
Processes:
    `java_home_for_spark`, `ignore` (signals).
"""

from rmq._admin.calls.dead import dead_message, list_dead
from rmq._admin.calls.dead import redrive as redrive_dead
from rmq._admin.calls.viewing import stats as queue_stats
from rmq._admin.dead_letters import new_score
from rmq._admin.messages import meaning_of, priority_of
from rmq._admin.stream_view import group_stats
from rmq._admin.stream_view import read_range as read_stream
from rmq._admin.view import REPORT_S, SparkQueries
from rmq._broker.binding import BoundScript, claim_order_of, refusal
from rmq._broker.broker import QueueBroker
from rmq._broker.claims import CLAIM_BYTES, MAX_BATCH, NACK_BATCH, ClaimPart, queue_claims
from rmq._broker.claims import look as look_at_queue
from rmq._broker.keys import group_keys, query_keys, sent_key, slot_keys, write_rate_key
from rmq._broker.sends import send_calls
from rmq._broker.streams import join as join_stream
from rmq._broker.streams import look as look_at_stream
from rmq._claiming.claim_planner import HandoverGate
from rmq._claiming.wakeups import WakeupSubscriber
from rmq._model.batches import Batch, EncodedMessage, Rows, gathered, slots_of
from rmq._model.encoding import Encoder
from rmq._model.entries import checked_group, is_id, position
from rmq._model.merging import MAX_COUNT, same_merging
from rmq._model.messages import payload_bytes
from rmq._model.outcomes import describe
from rmq._model.records import (
    BODIES,
    ITEMS,
    MAX_WHOLE,
    NUMBERS,
    TRACE_MARK,
    fold,
    read_record,
    unwrap,
    wrap,
    write_record,
)
from rmq._model.replies import NO_OWNER
from rmq._model.scores import ages_for, score_of
from rmq._model.topics import MAX_SLOTS, is_name
from rmq._ownership.follower import OwnershipFollower
from rmq._ownership.redis_keeper import RedisCoordinator
from rmq._ownership.values import is_chroot
from rmq._processes.server_programs import java_home_for_spark
from rmq._processes.signals import ignore
from rmq._registry.audit import Audit, confirm_all
from rmq._registry.registry import Registry
from rmq._registry.shared import Lock, take_from, take_lock
from rmq._sending.batch_sender import blocks, send_patiently, wait_for_room
from rmq._sending.pipeline import BATCH_BYTES, Pipeline, RoundLimits
from rmq._servers.durability import Durability, parse_durability
from rmq._servers.urls import parse_url
from rmq._transport.call import Call
from rmq._transport.connections import Connections, call_in_parts, call_slots
from rmq._transport.dispatch import Dispatch
from rmq._transport.rpc_ids import RpcId
from rmq._transport.script_library import ScriptLibrary

# fmt: off
__all__ = [
    "BATCH_BYTES", "BODIES", "CLAIM_BYTES", "ITEMS", "MAX_BATCH", "MAX_COUNT", "MAX_SLOTS", "MAX_WHOLE", "NACK_BATCH",
    "NO_OWNER", "NUMBERS", "REPORT_S", "TRACE_MARK", "Audit", "Batch", "BoundScript", "Call", "ClaimPart",
    "Connections", "Dispatch", "Durability", "EncodedMessage", "Encoder", "HandoverGate", "Lock", "OwnershipFollower",
    "Pipeline", "QueueBroker", "RedisCoordinator", "Registry", "RoundLimits", "Rows", "RpcId",
    "ScriptLibrary", "SparkQueries", "WakeupSubscriber", "ages_for", "blocks", "call_in_parts", "call_slots",
    "checked_group", "claim_order_of", "confirm_all", "dead_message", "describe", "fold", "gathered", "group_keys",
    "group_stats", "ignore", "is_chroot", "is_id", "is_name", "java_home_for_spark", "join_stream", "list_dead",
    "look_at_queue", "look_at_stream", "meaning_of", "new_score", "parse_durability", "parse_url", "payload_bytes",
    "position", "priority_of", "query_keys", "queue_claims", "queue_stats", "read_record", "read_stream",
    "redrive_dead", "refusal", "same_merging", "score_of", "send_calls", "send_patiently", "sent_key", "slot_keys",
    "slots_of", "take_from", "take_lock", "unwrap", "wait_for_room", "wrap",
    "write_rate_key", "write_record",
]
# fmt: on
