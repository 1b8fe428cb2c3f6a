-- Reads up to `most` entries that nobody of the group has had yet. A copy that was redriven into another group is no
-- business of this one: it is acked at once. Returns how many were read, those copies too.
local function read_new(slot, most, entries, counts, totals)
  local reply = redis.call('XREADGROUP', 'GROUP', slot.group, slot.consumer, 'COUNT', most, 'STREAMS', slot.store, '>')
  local page, others = reply and reply[1][2] or {}, {}
  for _, entry in ipairs(page) do
    if entry[2][1] == 'rmq:group' and entry[2][2] ~= slot.group then
      others[#others + 1] = entry[1]
    else
      entries[#entries + 1] = entry
      counts[#counts + 1] = 1
    end
  end
  if #others > 0 then
    count(totals, 'skipped', redis.call('XACK', slot.store, slot.group, unpack(others)))
  end
  count(totals, 'fresh', #page - #others)
  count(totals, 'delivered', #page - #others)
  return #page
end
