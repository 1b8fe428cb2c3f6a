-- Sets a pending entry aside until due_ms (0: at once, before all others): it stays in the group's pending list, in the
-- name of `(waiting)`, which no consumer can have, with this delivery count.
-- @include lose_entry
-- @include whole
local function park(slot, id, deliveries, due_ms, totals, lost)
  redis.call('ZADD', slot.retry, string.format('%.0f', due_ms), padded_id(id))
  local kept =
    redis.call('XCLAIM', slot.store, slot.group, '(waiting)', '0', id, 'IDLE', '0', 'RETRYCOUNT', whole(deliveries),
      'JUSTID')
  if #kept == 0 then
    lose_entry(slot, id, totals, lost)
  end
end
