-- Writes down that a stamp was used; or, with none, that the clock alone has changed. Mostly the stamp is Redis' time
-- and says all. Else `stamp` is the last one and Redis' time, and where they are not 0 the lead, the skew and the mark.
-- `others`: fields of meta and their values, which are written by the same command.
-- @include whole
local function note_stamp(slot, clock, stamp, now_ms, others)
  others = others or {}
  if stamp == now_ms and not clock.odd then
    redis.call('HSET', slot.meta, 'stamp', whole(stamp), unpack(others))
    return
  end
  local last = stamp or clock.last or now_ms
  local text = whole(last)
  if clock.lead > 0 or clock.skew > 0 then
    text = table.concat({ text, whole(now_ms), whole(clock.lead), whole(clock.skew), whole(clock.mark) }, ' ')
  elseif last ~= now_ms then
    text = text .. ' ' .. whole(now_ms)
  end
  if stamp and clock.till and clock.till < stamp + clock.own_ms then
    clock.lease = whole(clock.own_ms) .. ' ' .. whole(stamp + 2 * clock.own_ms)
  end
  if stamp and clock.lease then
    redis.call('HSET', slot.meta, 'stamp', text, 'lease', clock.lease, unpack(others))
  else
    redis.call('HSET', slot.meta, 'stamp', text, unpack(others))
  end
  clock.changed = false
end
