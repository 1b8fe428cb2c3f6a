-- What a query has refused of a chunk by now, nil for nothing: `of` has for a content the number of one of `hows`, and
-- each of these has the verb, `bury` or `back`, a delay in ms, an error type and an error message.
-- @include refused_field
local function read_refused(query, field)
  local text = redis.call('HGET', query, refused_field(field))
  return text and cmsgpack.unpack(text) or nil
end
