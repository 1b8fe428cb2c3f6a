-- Appends `number` entries to a stream; from ARGV[at] on, for each: how many values follow, then field, value, ...
-- Returns their ids if `detailed`, else an empty table.
local function append_entries(store, meta, at, number, detailed)
  local ids = {}
  for _ = 1, number do
    local last = at + tonumber(ARGV[at])
    local id = redis.call('XADD', store, '*', unpack(ARGV, at + 1, last))
    if detailed then
      ids[#ids + 1] = id
    end
    at = last + 1
  end
  write_totals(meta, { accepted = number })
  return ids
end
