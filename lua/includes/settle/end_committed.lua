-- The lease of a worker is over that had taken what a query of Spark has committed: that is done, and counts as acked.
-- @include count
-- @include drop_bodies
local function end_committed(slot, content, totals)
  count(totals, 'acked', 1)
  redis.call('HDEL', slot.error, content)
  if slot.held then
    redis.call('HDEL', slot.held, content)
  else
    drop_bodies(slot, { content })
  end
  redis.call('ZREM', slot.prepare, content)
end
