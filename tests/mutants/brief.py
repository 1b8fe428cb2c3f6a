"""Bugs to plant in the brief claim."""

from __future__ import annotations

from tests.mutants.mutant import mutant

BRIEF = (
    mutant("brief: what is in flight is claimed", ("brief_bodies", "if in_flight[i] then", "if false then")),
    mutant("brief: a rollback gets fresh retries", ("brief_size", " <= max_retries then", " < 0 then")),
    mutant("brief: the ack of another delivery counts", ("brief_acks", "if held[i] ~= score then", "if false then")),
    mutant("brief: the ack of another content counts", ("brief_acks", "name and held[1] ~= name or", "")),
    mutant("brief: a part of a claim is taken for all of it", ("brief_acks", "not name and behind == score", "false")),
    mutant("brief: leases that ended stay", ("claim_brief", "(now_ms - lease_ms) * 1000", "0")),
    mutant("brief: a score above all stamps stays", ("claim_brief", "oldest > (now_ms + 86400000) * 1000", "false")),
    mutant(
        "brief: a score above all stamps stays behind another",
        ("claim_brief", "math.floor(seen / 60000) ~= math.floor(now_ms / 60000)", "false"),
    ),
    mutant("brief: two claims have one stamp", ("claim_brief", "math.max(now_ms, last + 1)", "now_ms")),
    mutant("brief: a clock that was set back goes unseen", ("claim_brief", "seen <= now_ms and ", "")),
    mutant("brief: stamps run ahead for ever", ("claim_brief", "last < now_ms + 1000", "true")),
    mutant("brief: the time of a stamp that is ahead is lost", ("claim_brief", " .. ' ' .. now", "")),
    mutant("brief: the lease in force goes unseen", ("claim_brief", "stored[5] == whole(lease_ms)", "true")),
    mutant("brief: what is not due yet is claimed", ("brief_size", "<= now_ms do", "<= now_ms + 1 do")),
    mutant("brief: the next due time is not told", ("claim_brief", "or tonumber(upcoming)", "or nil")),
    mutant("brief: there is more, and nobody hears of it", ("claim_brief", "and upcoming and now_ms", "and false")),
    mutant("brief: the end of a lease is not told", ("claim_brief", "(oldest or size > 0) then", "false then")),
    mutant(
        "brief: any number of bytes is handed over",
        ("brief_bodies", "if bytes > rules.room.left then", "if false then"),
    ),
    mutant("brief: room is not used up", ("claim_brief", "rules.room.left - bytes, false", "rules.room.left, false")),
    mutant("brief: a search begins anew", ("claim_brief", "turn.start ~= 0 or ", "")),
    mutant(
        "brief: prepare is not written", ("write_brief_claim", "redis.call('ZADD', slot.prepare, unpack(claims))", "")
    ),
    mutant(
        "brief: store is not trimmed",
        ("write_brief_claim", "redis.call('ZREMRANGEBYRANK', slot.store", "local _ = ('ZREM'"),
    ),
    mutant(
        "brief: acks are not counted", ("claim_brief", "redis.call('HINCRBY', slot.meta, 'acked', whole(number))", "")
    ),
    mutant(
        "brief: messages expire at no time", ("brief_settlement", "elseif values == 2 then", "elseif values < 4 then")
    ),
    mutant(
        "brief: a full Redis is not drained", ("write_brief_acks", "elseif not rules.joined then", "elseif false then")
    ),
    mutant("brief: a paused slot is claimed from", ("claim_slot", "newer or paused or slot.any", "newer or slot.any")),
    mutant(
        "brief: a newer epoch is not written down",
        ("claim_slot", "not (newer or paused", "not (paused"),
    ),
    mutant(
        "brief: ties are in order of contents", ("claim_slot", "paused or slot.any or slot.born", "paused or slot.born")
    ),
)
