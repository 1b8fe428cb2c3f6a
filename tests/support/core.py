"""What tests know of RMQ's inside: scripts and their calls, keys, records, connections.

Whoever moves or renames one of these changes this file, and no test. Unit tests of a private module import that module.
"""

from collections.abc import Iterable
from types import ModuleType
from typing import Any

from rmq._admin import control as admin_control
from rmq._admin import figures as figures
from rmq._admin import history as history
from rmq._admin import search as search
from rmq._admin import stream_view
from rmq._admin.adopt import adopt as adopt
from rmq._admin.calls import dead as dead
from rmq._admin.calls import viewing as viewing
from rmq._admin.calls.dead import Turn as Turn
from rmq._admin.calls.dead import Untold as Untold
from rmq._admin.calls.viewing import stats as stats
from rmq._admin.deletion import TopicDeletion as TopicDeletion
from rmq._admin.history import LONGEST_WAIT_S as LONGEST_WAIT_S
from rmq._admin.history import MINUTES as MINUTES
from rmq._admin.history import sum_of as sum_of
from rmq._admin.inspection import read_workers as read_workers
from rmq._admin.messages import AnyPlace as AnyPlace
from rmq._admin.notices import AT_ONCE as AT_ONCE
from rmq._admin.notices import DeadNotifier as DeadNotifier
from rmq._admin.view import KEEP_S as KEEP_S
from rmq._admin.view import MOST_QUERIES as MOST_QUERIES
from rmq._admin.view import SparkQueries as SparkQueries
from rmq._broker import claims as claims
from rmq._broker import sends as sends
from rmq._broker import stream_broker as stream_broker
from rmq._broker import streams as broker_streams
from rmq._broker.binding import BoundScript as BoundScript
from rmq._broker.broker import MANY_SLOTS as MANY_SLOTS
from rmq._broker.broker import QueueBroker as QueueBroker
from rmq._broker.claims import CLAIM_BYTES as CLAIM_BYTES
from rmq._broker.claims import PIGGYBACKED_NACKS as PIGGYBACKED_NACKS
from rmq._broker.claims import SETTLE_ONLY as SETTLE_ONLY
from rmq._broker.claims import WHOLE_BATCH as WHOLE_BATCH
from rmq._broker.claims import Ack as Ack
from rmq._broker.claims import ClaimPart as ClaimPart
from rmq._broker.claims import Nack as Nack
from rmq._broker.claims import Outcomes as Outcomes
from rmq._broker.claims import WholeClaim as WholeClaim
from rmq._broker.keys import ENSEMBLES_KEY as ENSEMBLES_KEY
from rmq._broker.keys import HISTORY_LOCK_KEY as HISTORY_LOCK_KEY
from rmq._broker.keys import OWNERS_KEYS as OWNERS_KEYS
from rmq._broker.keys import REDIS_KEY as REDIS_KEY
from rmq._broker.keys import TOPICS_KEY as TOPICS_KEY
from rmq._broker.keys import WORKER_INFOS_KEY as WORKER_INFOS_KEY
from rmq._broker.keys import WORKERS_KEY as WORKERS_KEY
from rmq._broker.keys import GroupKeys as GroupKeys
from rmq._broker.keys import QueryKeys as QueryKeys
from rmq._broker.keys import SlotKeys as SlotKeys
from rmq._broker.keys import group_keys as group_keys
from rmq._broker.keys import group_rate_key as group_rate_key
from rmq._broker.keys import history_key as history_key
from rmq._broker.keys import query_keys as query_keys
from rmq._broker.keys import rate_key as rate_key
from rmq._broker.keys import sent_key as sent_key
from rmq._broker.keys import slot_keys as slot_keys
from rmq._broker.keys import spark_queries_key as spark_queries_key
from rmq._broker.keys import write_rate_key as write_rate_key
from rmq._broker.sends import MergedSends as MergedSends
from rmq._broker.sends import QueueSends as QueueSends
from rmq._broker.sends import send_calls as send_calls
from rmq._broker.stream_broker import FEWEST_KEPT as FEWEST_KEPT
from rmq._broker.stream_broker import OWN_FROM as OWN_FROM
from rmq._broker.stream_broker import RESUME_BATCH as RESUME_BATCH
from rmq._broker.stream_broker import NewestDeliveries as NewestDeliveries
from rmq._broker.stream_broker import StreamBroker as StreamBroker
from rmq._broker.stream_broker import join_group as join_group
from rmq._broker.streams import Member as Member
from rmq._claiming.buffers import ReturnBuffer as ReturnBuffer
from rmq._claiming.claim_planner import POSTPONE_S as POSTPONE_S
from rmq._claiming.claim_planner import TROUBLE_PAUSE_S as TROUBLE_PAUSE_S
from rmq._claiming.claim_planner import ClaimPlanner as ClaimPlanner
from rmq._claiming.consumer import EMPTY_ROUNDS as EMPTY_ROUNDS
from rmq._claiming.consumer import POLL_BYTES as POLL_BYTES
from rmq._claiming.fetcher import Fetcher as Fetcher
from rmq._claiming.leases import take_renewal as take_renewal
from rmq._claiming.rate_limit import RateLimiter as RateLimiter
from rmq._claiming.rounds import CLAIM_WEIGHT as CLAIM_WEIGHT
from rmq._claiming.rounds import FREED_BYTES as FREED_BYTES
from rmq._claiming.rounds import MOST_BATCHED as MOST_BATCHED
from rmq._claiming.rounds import MOST_PREFETCHED as MOST_PREFETCHED
from rmq._claiming.rounds import MOST_WEIGHT as MOST_WEIGHT
from rmq._claiming.rounds import ClaimPlan as ClaimPlan
from rmq._claiming.rounds import ClaimRequest as ClaimRequest
from rmq._claiming.rounds import FetchResult as FetchResult
from rmq._claiming.rounds import PrefetchSize as PrefetchSize
from rmq._claiming.wakeups import PROOF_S as PROOF_S
from rmq._claiming.wakeups import Wakeups as Wakeups
from rmq._io.backend import THREADS as THREADS
from rmq._io.backend import Job as Job
from rmq._listening.handler_invoker import ListenerSetup as ListenerSetup
from rmq._listening.listener_runner import ListenerRunner as ListenerRunner
from rmq._listening.listener_set import Heartbeat as Heartbeat
from rmq._listening.watcher import LONG_LOOK_S as LONG_LOOK_S
from rmq._listening.watcher import LOOK_S as LOOK_S
from rmq._listening.watcher import PROBE_S as PROBE_S
from rmq._listening.worker import BATCHES_S as BATCHES_S
from rmq._listening.worker import PIGGYBACK_S as PIGGYBACK_S
from rmq._listening.worker import Worker as Worker
from rmq._model import times as times
from rmq._model.batches import Batch as Batch
from rmq._model.batches import EncodedMessage as EncodedMessage
from rmq._model.batches import Rows as Rows
from rmq._model.claims import Selection as Selection
from rmq._model.claims import deliveries_of as deliveries_of
from rmq._model.claims import select as select
from rmq._model.claims import whole as whole
from rmq._model.deliveries import Claim as Claim
from rmq._model.deliveries import Holder as Holder
from rmq._model.encoding import Encoder as Encoder
from rmq._model.entries import BODY as BODY
from rmq._model.entries import OWN_MARK as OWN_MARK
from rmq._model.entries import EntryRows as EntryRows
from rmq._model.entries import id_key as id_key
from rmq._model.entries import own_score as own_score
from rmq._model.merging import MAX_UNIQUE_ITEMS as MAX_UNIQUE_ITEMS
from rmq._model.merging import Reducer as Reducer
from rmq._model.messages import Message as Message
from rmq._model.outcomes import ACKED as ACKED
from rmq._model.outcomes import RELEASED as RELEASED
from rmq._model.records import HEAD_BYTES as HEAD_BYTES
from rmq._model.records import ITEMS as ITEMS
from rmq._model.records import NUMBERS as NUMBERS
from rmq._model.records import Record as Record
from rmq._model.records import fold as fold
from rmq._model.records import framed as framed
from rmq._model.records import new_record as new_record
from rmq._model.records import read_record as read_record
from rmq._model.records import wanting as wanting
from rmq._model.records import wrap as wrap
from rmq._model.records import write_record as write_record
from rmq._model.replies import ALL_SETTLED as ALL_SETTLED
from rmq._model.replies import NO_OWNER as NO_OWNER
from rmq._model.replies import ClaimedRows as ClaimedRows
from rmq._model.replies import ClaimReply as ClaimReply
from rmq._model.replies import ExtendReply as ExtendReply
from rmq._model.replies import MovedOwner as MovedOwner
from rmq._model.replies import PartlySent as PartlySent
from rmq._model.replies import SettleReply as SettleReply
from rmq._model.replies import StreamClaimed as StreamClaimed
from rmq._model.retry import CHANCE as CHANCE
from rmq._model.schema import SCHEMA_VERSION as SCHEMA_VERSION
from rmq._model.scores import MAX_SCORE as MAX_SCORE
from rmq._model.scores import ages_for as ages_for
from rmq._model.scores import retries_left_after_claim as retries_left_after_claim
from rmq._model.times import moment_at as moment_at
from rmq._model.times import monotonic_s as monotonic_s
from rmq._model.topics import Topic
from rmq._ownership import redis_identity as redis_identity
from rmq._ownership.redis_identity import EpochFloors as EpochFloors
from rmq._ownership.redis_keeper import MOST_SLOTS as MOST_SLOTS
from rmq._ownership.values import PASSWORD as PASSWORD
from rmq._processes.redis_cluster import create_cluster as create_cluster
from rmq._processes.server_programs import SERVER_WHEELS as SERVER_WHEELS
from rmq._processes.server_programs import find_redis_server as find_redis_server
from rmq._processes.server_programs import in_wheel as in_wheel
from rmq._processes.server_programs import look_at as look_at
from rmq._registry import audit
from rmq._registry import deletion as deletion
from rmq._registry import registry as registry
from rmq._registry import shared as broker_shared
from rmq._registry.deletion import SlotDeletion as SlotDeletion
from rmq._registry.registry import MAX_DEFINITION_BYTES as MAX_DEFINITION_BYTES
from rmq._registry.registry import Registry as Registry
from rmq._registry.shared import take_tokens as take_tokens
from rmq._sending import batch_sender as batch_sender
from rmq._sending.batch_sender import BATCH as BATCH
from rmq._sending.batch_sender import BUFFERED as BUFFERED
from rmq._sending.batch_sender import CHUNK as CHUNK
from rmq._sending.batch_sender import batch_size as batch_size
from rmq._sending.batch_sender import send_patiently as send_patiently
from rmq._sending.pipeline import BATCH_BYTES as BATCH_BYTES
from rmq._sending.pipeline import JOINED_MESSAGES as JOINED_MESSAGES
from rmq._sending.pipeline import JOINED_SLOTS as JOINED_SLOTS
from rmq._servers.cluster_map import hash_slot as hash_slot
from rmq._servers.cluster_map import hash_tag as hash_tag
from rmq._servers.combiner import Combiner as Combiner
from rmq._servers.combiner import WaitingCall as WaitingCall
from rmq._servers.durability import Durability as Durability
from rmq._servers.durability import parse_durability as parse_durability
from rmq._servers.server_check import AOF_TROUBLE as AOF_TROUBLE
from rmq._servers.server_check import PUBLISH as PUBLISH
from rmq._servers.server_check import not_executed as not_executed
from rmq._servers.urls import Address as Address
from rmq._servers.urls import Topology as Topology
from rmq._servers.urls import parse_url as parse_url
from rmq._transport import connections as connections
from rmq._transport.call import Call as Call
from rmq._transport.call import plain as plain
from rmq._transport.call_queue import CallQueue as CallQueue
from rmq._transport.connections import Connections as Connections
from rmq._transport.connections import make_router as make_router
from rmq._transport.dispatch import Dispatch as Dispatch
from rmq._transport.exchange import results_of as results_of
from rmq._transport.refusals import error_of as error_of
from rmq._transport.rpc_ids import named_rpc_id as named_rpc_id
from rmq._transport.script_library import Script as Script
from rmq._transport.script_library import ScriptLibrary as ScriptLibrary
from rmq._transport.script_library import default_scripts as default_scripts
from rmq._transport.shared_calls import groups_of as groups_of
from rmq.aio.backend import EventLoop as EventLoop
from rmq.aio.greenlets import MOST_IDLE as MOST_IDLE
from rmq.aio.greenlets import GreenletTask as GreenletTask


def _together(*modules: ModuleType) -> Any:
    """Return the names of several modules in one: tests need not know which package makes a call."""
    together = ModuleType("calls")
    for module in modules:
        vars(together).update(vars(module))
    return together


control, shared = _together(audit, admin_control), _together(broker_shared, viewing)
streams = _together(broker_streams, stream_view)


def encode(topic: Topic, message: Message) -> EncodedMessage:
    """Check a message, and return what is sent of it."""
    return Encoder(topic).one(message)


def fold_messages(topic: Topic, messages: Iterable[EncodedMessage]) -> list[EncodedMessage]:
    """Fold messages of one slot as a producer does with `fold=True`."""
    batch = Batch(0)
    for message in messages:
        if batch.fold(topic, message, None) is None:
            batch.add(message)
    return list(batch)
