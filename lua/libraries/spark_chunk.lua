-- Chunks of a streaming query: what a batch has read of a slot, in the hash `spark:Q{T_n}`: a list of contents and
-- store scores, and its state. Invariant: only the newest driver of the query acks, forgets or replays a chunk.
-- @include redis, spark_refuse

-- Whether a newer driver of the query has been here. Returns a refusal or false, and the number of the last acked
-- batch.
local function check_driver(query, generation)
  local state = redis.call('HMGET', query, 'generation', 'acked')
  if tonumber(state[1] or 0) > generation then
    return redis.error_reply('RMQ_DRIVER ' .. state[1])
  end
  return false, tonumber(state[2] or 0)
end

-- Whether a driver may read a batch of its query, or refuse rows of it: no newer driver has been here, and the batch is
-- not acked. Returns a refusal or false.
local function check_batch(query, generation, seq)
  local refusal, acked = check_driver(query, generation)
  if not refusal and seq <= acked then
    refusal = redis.error_reply('RMQ_ACKED ' .. acked)
  end
  return refusal
end

-- The owner under which a query has last read or renewed in this slot: its epoch and its ensemble, as text; '0' and ''
-- without ZooKeeper. It stands in a field of its own, so that a renewal need not read the lists of the chunks.
local function query_owner(query)
  local epoch, ensemble = string.match(redis.call('HGET', query, 'owner') or '', '^(%d+) (.*)$')
  return epoch or '0', ensemble or ''
end

-- Notes who owns this slot for a query, see `query_owner`. Without ZooKeeper it notes nothing.
local function note_owner(query, epoch, ensemble)
  local known, where = query_owner(query)
  if ensemble ~= '' and (known ~= epoch or where ~= ensemble) then
    redis.call('HSET', query, 'owner', epoch .. ' ' .. ensemble)
  end
end

-- What a chunk holds by now, in a field of its own beside its list: the stamp of its claims, how many messages it was
-- given, how many its last replay put back, how many it held at its last renewal, and the stamps before under which it
-- lost some. A renewal changes this field only, not the list.
local function state_field(field)
  return field .. ':held'
end

-- The state, as `write_state` takes it; nothing where there is no chunk.
local function read_state(query, field)
  local state = redis.call('HGET', query, state_field(field)) or ''
  local stamp, number, put_back, held, lost = string.match(state, '^(%d+) (%d+) (%d+) (%d+)([%d ]*)$')
  return tonumber(stamp), tonumber(number), tonumber(put_back), tonumber(held), lost
end

-- The chunk, nil where there is none, with the stamp of its last renewal.
local function read_chunk(query, field)
  local list = redis.call('HGET', query, field)
  if not list then
    return nil
  end
  local chunk = cmsgpack.unpack(list)
  chunk.stamp = read_state(query, field)
  return chunk
end

-- Writes what a chunk holds by now, see `read_state`. `lost`: stamps as text, each with a blank before it. A chunk that
-- holds nothing has no stamp, 0: that of its read is not noted in meta, so the next claim of the slot gets the same one.
local function write_state(query, field, stamp, number, put_back, held, lost)
  local state = table.concat({ whole(held > 0 and stamp or 0), whole(number), whole(put_back or 0), whole(held) }, ' ')
  redis.call('HSET', query, state_field(field), state .. (lost or ''))
end

-- How many messages of a batch a replay of it has: false for all; after `max_replays` half of what the last one had,
-- and in the end 0: the one that was left dies. The chunk notes it, so that a `max_replays` that was lowered skips no
-- half: else all chunks with one message would die at once.
local function share_of(chunk, size, max_replays)
  if chunk.replays <= max_replays then
    return false
  end
  chunk.share = math.floor((chunk.share or size) / 2)
  return chunk.share
end

-- Claim scores of one stamp, times 1,000, as Redis writes them: by retries left. Each is put into text but once.
local function scores_from(base)
  return setmetatable({}, {
    __index = function(known, left)
      known[left] = whole(base + left)
      return known[left]
    end,
  })
end

-- What a chunk still holds: in prepare with exactly the claim score that the chunk gave it, by its stamp. Items are
-- flat: content, store score; `left` is how many retries each has left after this delivery, or a table of them where
-- they differ. Returns the held items, their contents, and their `left`.
local function held_in_chunk(slot, chunk)
  local items, left = chunk.items, chunk.left
  local names = contents_of(items)
  if #names == 0 then
    return items, names, left
  end
  local scores, uniform = scores_from(chunk.stamp * 1000), type(left) == 'number'
  local score = uniform and scores[left]
  local found, lost = redis.call('ZMSCORE', slot.prepare, unpack(names)), 0
  for n = 1, #names do
    if found[n] ~= (score or scores[left[n]]) then
      found[n] = false
      lost = lost + 1
    end
  end
  if lost == 0 then
    return items, names, left
  end
  local held, contents, lefts = {}, {}, {}
  for n = 1, #names do
    if found[n] then
      held[#held + 1] = names[n]
      held[#held + 1] = items[2 * n]
      contents[#contents + 1] = names[n]
      lefts[#lefts + 1] = uniform and left or left[n]
    end
  end
  return held, contents, uniform and left or lefts
end

-- Forgets what a chunk has read, and its copies of bodies: nothing of it is acked. The claims stay, up to the ends of
-- their leases. `chunk` as `read_chunk` gives it; nil: there is none.
local function forget_chunk(query, query_body, field, chunk)
  if not chunk then
    return
  end
  if #chunk.items > 0 then
    redis.call('HDEL', query_body, unpack(contents_of(chunk.items)))
  end
  redis.call('HDEL', query, field, state_field(field), refused_field(field))
end
