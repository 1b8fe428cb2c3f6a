-- The owner under which a query has last read or renewed in this slot: its epoch and its ensemble, as text; '0' and ''
-- without ZooKeeper. It stands in a field of its own, so that a renewal need not read the lists of the chunks.
local function query_owner(query)
  local epoch, ensemble = string.match(redis.call('HGET', query, 'owner') or '', '^(%d+) (.*)$')
  return epoch or '0', ensemble or ''
end
