-- Writes what a chunk holds by now, see `read_state`. `lost`: stamps as text, each with a blank before it.
-- @include whole
-- @include chunk_state
local function write_state(query, field, stamp, number, put_back, held, lost)
  local state = table.concat({ whole(stamp), whole(number), whole(put_back or 0), whole(held) }, ' ')
  redis.call('HSET', query, state_field(field), state .. (lost or ''))
end
