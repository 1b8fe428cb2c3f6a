-- Drops up to `most` of the oldest entries with ids below `limit`; returns how many, and whether `until_ms` has passed.
-- @include read_clock
-- @include id_after
local function trim_below(store, limit, most, approximate, until_ms)
  local gone, late = 0, false
  while gone < most and not late do -- a node of the stream has up to 100 entries, if nobody has set that otherwise
    local step = redis.call('XTRIM', store, 'MINID', '~', limit, 'LIMIT', math.min(100, most - gone))
    if step == 0 then
      gone = gone + redis.call('XTRIM', store, 'MINID', '~', limit, 'LIMIT', most - gone)
      break
    end
    gone = gone + step
    late = read_clock() > until_ms
  end
  while not approximate and gone < most and not late do
    local page = redis.call('XRANGE', store, '-', '(' .. limit, 'COUNT', math.min(most - gone, 10))
    if #page == 0 then
      break
    end
    gone = gone + redis.call('XTRIM', store, 'MINID', id_after(page[#page][1]))
  end
  return gone, late
end
