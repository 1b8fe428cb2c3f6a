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
