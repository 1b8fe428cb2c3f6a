-- Folds a sent record into the one that its content has in store: as `fold`, within the topic's bounds. `held_bytes`:
-- how long the value in flight is; both have room for twice `max_bytes`. Returns the record, or nil and why not:
-- `ITEMS` (full of items, or of their bytes) or `RANGE` (a sum that a double does not hold).
-- @include fold
-- @include frames_within
local function fold_sent(rules, stored, sent, held_bytes)
  local kind = sent.kind
  if kind == 'S' then
    local sum = stored and stored.kind == 'S' and stored.number + sent.number or sent.number
    if math.abs(sum) > 9007199254740991 then
      return nil, 'RANGE'
    end
  end
  if kind ~= 'C' and kind ~= 'U' and kind ~= 'J' then
    return stored and fold(stored, sent) or sent
  end
  local at = frames_from(kind)
  local room = math.min(rules.max_bytes, 2 * rules.max_bytes - held_bytes)
  local folded = fold(stored or { count = 0, first = 0, last = 0, number = 0 }, sent) -- a copy: it may be cut
  if folded.number <= rules.max_items and #folded.value + 1 - at <= room then
    return folded
  end
  if rules.when_full == 'refuse' or rules.when_full == 'release' then
    local before = stored and stored.kind == kind and stored or { number = 0, value = '' }
    local full = before.number >= rules.max_items or #before.value + 1 - at >= room
    local adds = folded.number > before.number -- what is there already needs no room
    if adds and (full or rules.when_full == 'refuse') then
      return nil, 'ITEMS'
    end
    return folded
  end
  local first, value = at, folded.value
  if rules.when_full == 'drop_newest' then
    local kept = stored and stored.kind == kind and stored.number or 0
    first = kept > 0 and #stored.value + 1 or at
    local last, number = frames_within(value, first, rules.max_items - kept, room - (first - at))
    folded.number, folded.value = kept + number, string.sub(value, 1, last - 1)
    return folded
  end
  local number, excess = folded.number, #value + 1 - at - room
  while number > 0 and (number > rules.max_items or excess > 0) do
    local last = frame_end(value, first)
    first, number, excess = last + 1, number - 1, excess - (last + 1 - first)
  end
  folded.number, folded.value = number, string.sub(value, 1, at - 1) .. string.sub(value, first)
  return folded
end
