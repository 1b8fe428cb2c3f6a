-- The record of a message that dies, with that of an earlier death of its content. Of items the newest stay that have
-- up to 1 MiB, of sets up to 10,000: a content may die again and again. Also returns what it has cost (see fold_cost).
-- @include records
-- @include write_record
-- @include fold
-- @include move_cost
-- @include fold_cost
local function fold_dead(slot, name, record)
  local earlier = redis.call('HGET', slot.dead_body, name)
  if not earlier or not record then
    return record or earlier, move_cost(#(record or earlier or ''))
  end
  local older, newer = read_record(earlier), read_record(record)
  local folded = fold(older, newer)
  local kind, excess = folded.kind, #folded.value - 1048576
  local most = kind == 'C' and math.huge or 10000
  if (excess > 0 or folded.number > most) and (kind == 'C' or kind == 'U' or kind == 'J') then
    local from = frames_from(kind)
    local at, dropped = from, 0
    while (excess > 0 or folded.number - dropped > most) and at <= #folded.value and dropped < folded.number - 1 do
      local last = frame_end(folded.value, at)
      excess, at, dropped = excess - (last + 1 - at), last + 1, dropped + 1
    end
    folded.number = folded.number - dropped
    folded.value = string.sub(folded.value, 1, from - 1) .. string.sub(folded.value, at)
  end
  return write_record(folded), fold_cost(older, newer)
end
