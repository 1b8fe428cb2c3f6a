-- Append entries to the stream of one slot, in this order.
--
-- KEYS[1]  store  STREAM
-- KEYS[2]  meta   HASH  totals
-- KEYS[3]  wake   channel
-- KEYS[4]  sent?  HASH  marks of a query of Spark; only if a chunk is sent
-- ARGV[1]  publish      command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[2]  max_backlog  most entries in this slot, acked ones too; 0 for no bound
-- ARGV[3]  detailed     '1': return the ids
-- ARGV[4]  number       of entries, 1 to 1,000
-- ARGV[5]  chunk        of Spark, which is sent once, see send_chunk; else empty
-- ARGV[6..] messages  per entry: how many values follow, then field, value, ...
-- Returns: ids of the new entries; empty if not detailed; '0' if the chunk was sent before
-- Errors: RMQ_FULL size max_backlog; RMQ_ID id last_id, where an id does not rise; RMQ_IDS named number, where only
--   some entries name one; OOM; nothing was written
-- Complexity: O(n)
-- Notes: atomic. Repeated after a lost reply, it appends once more: there is nothing to merge with. With ids it does
--   not: entries that are there already, the same ones under these ids, are left out. With ids such as 5-* it appends
--   once more, or is refused where a larger id came in between: such a call must not be repeated.
-- @include totals, redis, stream_ids

local store, meta, wake, sent = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, max_backlog, detailed, number = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])

local function append()
  local size = redis.call('XLEN', store)
  redis.call('HLEN', meta)
  local wrong, there = check_ids(store, 6, number)
  if wrong then
    return wrong
  end
  if max_backlog > 0 and there < number and size + number - there > max_backlog then
    return redis.error_reply('RMQ_FULL ' .. size .. ' ' .. max_backlog)
  end
  local at, ids = 6, {}
  for _ = 1, there do
    ids[#ids + 1] = detailed and ARGV[at + 2] or nil
    at = at + 1 + tonumber(ARGV[at])
  end
  if there < number then
    for _, id in ipairs(append_entries(store, meta, at, number - there, detailed)) do
      ids[#ids + 1] = id
    end
    hint(publish, wake, '0')
  else
    replicate(meta)
  end
  return ids
end

if sent then
  -- @include clock, completion
  return send_chunk(sent, ARGV[5], (read_clock()), append) or '0'
end
return append()
