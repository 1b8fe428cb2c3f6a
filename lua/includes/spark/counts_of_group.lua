-- How many entries were ever there for a group, '' where it began at an id and the totals do not know; and how many of
-- them it has read or passed over.
-- @include whole
local function counts_of_group(meta, group)
  local state = redis.call('HMGET', group, 'began', 'fresh', 'skipped')
  local sent = redis.call('HMGET', meta, 'accepted', 'copied')
  local added = tonumber(sent[1] or 0) + tonumber(sent[2] or 0)
  local read = whole(tonumber(state[2] or 0) + tonumber(state[3] or 0))
  return state[1] and whole(math.max(0, added - tonumber(state[1]))) or '', read
end
