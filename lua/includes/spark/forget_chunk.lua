-- Forgets what a chunk has read, and its copies of bodies: nothing of it is acked. The claims stay, up to the ends of
-- their leases. `chunk` as `read_chunk` gives it; nil: there is none.
-- @include contents_of
-- @include chunk_state
-- @include refused_field
local function forget_chunk(query, query_body, field, chunk)
  if not chunk then
    return
  end
  if #chunk.items > 0 then
    redis.call('HDEL', query_body, unpack(contents_of(chunk.items)))
  end
  redis.call('HDEL', query, field, state_field(field), refused_field(field))
end
