-- A join in store that has all of its parts by a fold, `record`, is due at once. Returns whether it was to wait.
-- @include whole
local function end_wait(store, name, record, now_ms)
  return record.kind == 'J'
    and record.number >= struct.unpack('<d', record.value)
    and redis.call('ZADD', store, 'XX', 'LT', 'CH', whole(now_ms), name) == 1
end
