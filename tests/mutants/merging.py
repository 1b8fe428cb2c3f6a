"""Bugs to plant in the scripts of topics that merge."""

from __future__ import annotations

from tests.mutants.mutant import mutant

MERGING = (
    # folds
    mutant("merging: newer items come first", ("fold", "older.value .. value", "value .. older.value")),
    mutant(
        "merging: newer items come first, quick way",
        ("fold_text", "sub(text, 38) .. sent.value", "sent.value .. sub(text, 38)"),
    ),
    mutant(
        "merging: newer items of one call come first",
        ("ungather", "table.concat(group.parts)\nend", "table.concat({ group.parts[2] or '', group.parts[1] })\nend"),
    ),
    mutant(
        "merging: a call brings an item to a set twice", ("new_items", "not group.known[frame] and not is_", "not is_")
    ),
    mutant(
        "merging: a call forgets what a set has", ("is_stored", "group.known[string.sub(text, at, last)] = true", "")
    ),
    mutant(
        "merging: gathered items have no bound", ("gather", "if group.number + number > rules", "if number > rules")
    ),
    mutant("merging: a refused send counts", ("plan_sends", "refusal and 0 or sent.count", "sent.count")),
    mutant(
        "merging: a refused content is in the backlog",
        ("plan_sends", "if not earlier then -- as if", "if false then -- as if"),
    ),
    mutant("merging: a call rewrites whatever that costs", ("plan_sends", "if cost >= BUDGET and", "if false and")),
    mutant(
        "merging: a part of a chunk passes for all of it",
        ("send_merged", "kept = reply.partly and whole(first + #reply[2]) or ''", "kept = ''"),
    ),
    mutant("merging: another chunk goes on", ("sent_before", "strict and not same and", "false and")),
    mutant(
        "merging: a chunk is sent as a whole, whatever that costs",
        ("send_merged", "if #ARGV[6] > 1 then", "if #ARGV[6] > 1 and not keep_s then"),
    ),
    mutant(
        "merging: a page of values is not taken off",
        ("all_fit", "slot.room.left - bytes, slot.room.first and", "slot.room.left, slot.room.first and"),
    ),
    mutant("merging: what is rewritten is read at once", ("read_stored", "if left <= 0 then", "if false then")),
    mutant(
        "merging: a call of which all is refused is not tried again",
        ("send_merged", "if reply.nothing then", "if false then"),
    ),
    mutant("merging: of equal versions the first stands", ("fold_text", "if number > sent.", "if number >= sent.")),
    mutant(
        "merging: of equal versions in two flights the first stands",
        ("fold", "older.number > number then", "older.number >= number then"),
    ),
    mutant("merging: an item within another one counts as there", ("has_frame", "if at == found then", "if true then")),
    mutant(
        "merging: an older send makes the last one older", ("fold", "math.max(older.last, newer.last)", "newer.last")
    ),
    mutant(
        "merging: another call passes for a repeat",
        ("send_merged", "known.reply and known.digest ~= call.digest", "false"),
    ),
    mutant(
        "merging: weights do not count",
        ("plan_sends", "accepted + (refusal and 0 or sent.count)", "accepted + (refusal and 0 or 1)"),
    ),
    mutant("merging: weights do not fold", ("fold_text", "count = count + sent.count", "count = count + 1")),
    mutant("merging: sums overflow", ("fold_sent", "math.abs(sum) > 9007199254740991", "false")),
    # where values go
    mutant("merging: an ack leaves the value", ("settle_acks", "redis.call('HDEL', slot.held, unpack(mine))", "")),
    mutant(
        "merging: a claim leaves the value in the backlog", ("hold", "redis.call('HDEL', slot.body, unpack(moved))", "")
    ),
    mutant("merging: a claim forgets what waits for a retry", ("hold", "if before and value then", "if false then")),
    mutant(
        "merging: a claim does not look for what waits for a retry",
        ("claim_slot", "slot.held and redis.call('ZCARD', slot.retry) > 0", "false"),
    ),
    mutant("merging: a rollback overwrites the fresh copy", ("fold_back", "if fresh then", "if false then")),
    mutant(
        "merging: a rollback folds as the newer one",
        (
            "fold_back",
            "local folded = fold(older, newer)",
            "local folded = fold(newer, older)",
        ),
    ),
    mutant(
        "merging: a rolled back value stays with flights, too",
        ("fold_back", "redis.call('HDEL', slot.held, content)", ""),
    ),
    mutant("merging: nobody is buried beside a fresh copy", ("bury", "if not slot.held and", "if")),
    mutant("merging: the fresh copy's value is buried", ("bury", "slot.held or slot.body", "slot.body")),
    mutant(
        "merging: a second death overwrites the first", ("enter_dead", "if again and slot.held then", "if false then")
    ),
    mutant("merging: a dead set keeps all its items", ("fold_dead", "or folded.number > most) and", ") and")),
    mutant("merging: folds cost nothing", ("fold_cost", "local cost = 8 *", "local cost = 0 *")),
    mutant("merging: items of sets cost nothing", ("fold_cost", "768 * (items", "0 * (items")),
    mutant(
        "merging: what waits for a retry costs a claim nothing",
        ("fits", "bytes = bytes + fold_cost(", "local _ = fold_cost("),
    ),
    mutant(
        "merging: nacks fold whatever that costs",
        ("settle_nacks", "if budget.bytes <= 0 then", "if false then"),
    ),
    mutant(
        "merging: a replay folds whatever that costs",
        ("roll_back_replayed", "slot.held and twins[n] and slot.budget.bytes <= 0", "false"),
    ),
    mutant(
        "merging: what a replay leaves to a sweep is lost",
        ("roll_back_replayed", "redis.call('ZADD', slot.retry, unpack(waiting))", ""),
    ),
    mutant(
        "merging: a replay buries whatever that costs",
        ("bury_replayed", "if slot.budget.bytes <= 0 then", "if false then"),
    ),
    mutant(
        "merging: an ack of refused rows folds whatever that costs",
        ("settle_refused", "elseif budget.bytes <= 0 then", "elseif false then"),
    ),
    mutant(
        "merging: an ack that ends early forgets what it has ended",
        ("spark_settle", "refused.ended = (refused.ended or 0) + ended", ""),
    ),
    mutant("merging: a nack does not tell what it has left", ("claim_slot", "and whole(nacked) or nil", "and nil")),
    mutant(
        "merging: the dead keep all their items",
        ("fold_dead", "if (excess > 0 or folded.number > most) and", "if false and"),
    ),
    mutant(
        "merging: a redrive drops the fresh value",
        ("redrive", "payload, cost = write_record(folded),", "cost ="),
    ),
    mutant(
        "merging: a redrive beside a fresh copy drops the dead value",
        ("redrive", "if not fresh or slot.held or overwrite", "if not fresh or overwrite"),
    ),
    mutant(
        "merging: a send without a body takes it away",
        ("fold_text", "value = is_bodiless(standing) and value or standing", ""),
    ),
    mutant(
        "merging: a fold without a body takes it away",
        ("fold", "if kind == 'R' and is_bodiless(value) then", "if false then"),
    ),
    mutant("merging: a cancelled retry leaves its value", ("cancel", "redis.call('HDEL', slot.held, content)", "")),
    mutant(
        "merging: purged retries leave their values",
        ("purge_backlog", "if slot.held and from ~= store then", "if false then"),
    ),
    mutant(
        "merging: what leaves store beside a flight leaves its value",
        ("forget_unused", "slot.held and contents or unused", "unused"),
    ),
    mutant(
        "merging: a promoted retry leaves its value",
        ("promote", "fold_back(slot, content, stored)", "local _ = fold_back"),
    ),
    mutant(
        "merging: a rescheduled retry leaves its value",
        ("reschedule", "fold_back(slot, content, stored)", "local _ = fold_back"),
    ),
    mutant(
        "merging: a rescheduled retry leaves before its value does",
        (
            "reschedule",
            "if waiting and slot.held then",
            "redis.call('ZREM', retry, content)\n    if waiting and slot.held then",
        ),
    ),
    mutant(
        "merging: a body without its message swallows sends",
        (
            "plan_sends",
            "adds[2 * size - 1], adds[2 * size] = first, name",
            "if not text then adds[#adds + 1], adds[#adds + 2] = first, name end",
        ),
    ),
    mutant(
        "merging: a full body without its message refuses sends",
        ("plan_sends", "text = score and text", "text = text"),
    ),
    mutant(
        "merging: what one message has no room for is cut from the next one",
        (
            "fold_sent",
            "fold(stored or { count = 0, first = 0, last = 0, number = 0 }, sent)",
            "stored and fold(stored, sent) or sent",
        ),
    ),
    # when it is due
    mutant(
        "merging: sliding forgets max_wait",
        ("next_score", "due < latest and due or latest > now_ms and latest or now_ms", "due"),
    ),
    mutant("merging: what is due is pushed back", ("next_score", "if score <= now_ms then", "if score < 0 then")),
    mutant("merging: an older version pushes back", ("next_score", "'sliding' and newest then", "'sliding' then")),
    mutant("merging: an older version decides the priority", ("next_score", "if not newest then", "if false then")),
    mutant("merging: an older version decides the time", ("next_score", "newest and value or score", "value")),
    mutant(
        "merging: one send more than max_count",
        ("is_complete", "count >= rules.max_count", "count > rules.max_count"),
    ),
    mutant("merging: what is due is put off by the last send", ("store_plan", "'XX', 'LT', 'CH'", "'XX', 'CH'")),
    mutant("merging: nobody is told of a complete message", ("send_folded", "if sooner > 0 then", "if false then")),
    mutant("merging: a complete message waits", ("store_plan", "if #plan.due > 0 then", "if false then")),
    mutant(
        "merging: a join misses its last part",
        ("is_complete", "'J' and number >= struct", "'J' and number + 1 >= struct"),
    ),
    mutant(
        "merging: windows are not noted",
        ("plan_sends", "scores[name], cools[name], new = score, cool,", "scores[name], new = score,"),
    ),
    mutant(
        "merging: no window follows a trailing one", ("first_score", "return cool, cool + value", "return cool, cool")
    ),
    mutant("merging: a window that is over still drops", ("first_score", "not cool or cool <= now_ms", "not cool")),
    mutant(
        "merging: priorities add up beyond the largest",
        ("next_score", "math.min(own + value, rules.highest)", "own + value"),
    ),
    mutant(
        "merging: a send makes a message younger",
        ("next_score", "priority * scale + score % scale", "priority * scale"),
    ),
    mutant(
        "merging: a promoted message is no longer first", ("store_plan", "rules.kind == 'PRIORITY' and whole or", "")
    ),
    # what folds back beside a fresh copy
    mutant(
        "merging: a join that a fold completes waits on", ("fold_back", "sooner = now_ms and", "sooner = false and")
    ),
    mutant("merging: a redrive completes a join that waits on", ("redrive", "not overwrite and", "false and")),
    mutant(
        "merging: a join is complete without its last part", ("end_wait", "record.number >=", "record.number + 1 >=")
    ),
    mutant(
        "merging: nobody hears of a join that a delayed retry completes",
        ("settle_nacks", "(number == 0 or sooner)", "(number == 0)"),
    ),
    mutant(
        "merging: what a flight has filled refuses sends until its time",
        ("plan_sends", "filled[name] = refusal == 'ITEMS'", "filled[name] = false and refusal == 'ITEMS'"),
    ),
    mutant(
        "merging: what is due and full takes more",
        ("plan_sends", "if score and score > now_ms then", "if score then"),
    ),
    mutant(
        "merging: what leaves early puts off the next window",
        ("plan_sends", "if cool and cool - value == before then", "if false then"),
        ("first_score", "return now_ms, nil --", "return now_ms, cool + value --"),
    ),
    mutant("merging: a claim does not weigh what waits for a retry", ("fits", "if waiting then", "if false then")),
    mutant(
        "merging: what a flight has filled takes all that a call brings",
        ("plan_sends", "record.number <= 3 * max_items and bytes <= 3 * rules.max_bytes", "true"),
    ),
    mutant(
        "merging: a sweep does not weigh what folds back",
        ("sweep", "budget.bytes = budget.bytes - cost", ""),
    ),
    mutant("merging: a name counts for ever", ("send_merged", "string.sub(lane, 1, 1) == '='", "false")),
    # bounds
    mutant(
        "merging: the newest items push out what is stored", ("fold_sent", "kept > 0 and #stored.value + 1 or at", "at")
    ),
    mutant(
        "merging: one item too many",
        ("fold_sent", "folded.number <= rules.max_items and", "folded.number <= rules.max_items + 1 and"),
        ("fold_text", "number <= rules.max_items and", "number <= rules.max_items + 1 and"),
    ),
    mutant(
        "merging: the one in flight needs no room",
        ("fold_sent", "2 * rules.max_bytes - held_bytes", "2 * rules.max_bytes"),
    ),
    mutant(
        "merging: what was dropped counts as merged, too",
        ("send_folded", "plan.accepted - plan.dropped - new", "plan.accepted - new"),
    ),
    # repeats
    mutant("merging: replies are not noted", ("note_completion", "head .. table.concat(known.kept, '|')", "head")),
    mutant(
        "merging: floors are ignored",
        ("send_merged", "elseif tonumber(call.number) < known.floor then", "elseif false then"),
    ),
    mutant("merging: a floor may sink", ("note_completion", "math.max(call.floor, known.floor)", "call.floor")),
    mutant(
        "merging: a call has the answer of a later one",
        ("completed", "if number == call.number then", "if tonumber(number) >= tonumber(call.number) then"),
    ),
    mutant(
        "merging: the numbers above the floor are forgotten",
        ("completed", "tonumber(number) >= call.floor", "tonumber(number) > call.floor"),
    ),
    mutant("merging: lanes stay for ever", ("note_completion", "or 0) < now_ms - keep.unused_ms", "or 0) < 0")),
    mutant("merging: lanes in use are swept", ("note_completion", "or 0) < now_ms - keep.unused_ms", "or 0) < now_ms")),
)
