-- A group that was moved back meets entries that it still has pending, or among its dead, up to the id `slot.again`:
-- these stay what they are, and its position moves past them. XREADGROUP alone would take them from who holds them.
-- Looks at up to `wanted` entries, and 4 x 100. Returns how many of the next ones are to be read: `wanted` where it is
-- past all of them.
-- @include groups_of
-- @include ids_in_order
-- @include count
local function pass_over(slot, wanted, totals)
  for _ = 1, 4 do
    local _, mine = groups_of(slot.store, slot.group)
    local page = before(mine[8], slot.again) and
      redis.call('XRANGE', slot.store, '(' .. mine[8], slot.again, 'COUNT', math.min(wanted, 100)) or {}
    if #page == 0 then
      redis.call('HDEL', slot.meta, 'again')
      slot.again = nil
      return wanted
    end
    local first, number = nil, 0
    for _, entry in ipairs(page) do
      local has = redis.call('XPENDING', slot.store, slot.group, entry[1], entry[1], 1)[1] ~= nil or
        redis.call('ZSCORE', slot.dead, entry[1]) ~= false
      if first == nil then
        first = has
      elseif has ~= first then
        break
      end
      number = number + 1
    end
    if not first then
      return number
    end
    redis.call('XGROUP', 'SETID', slot.store, slot.group, page[number][1])
    count(totals, 'skipped', number)
  end
  return 0
end
