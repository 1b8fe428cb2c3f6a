-- Reads a page of a group's dead by ranks: { id, time of death, reason or '', { field, value, ... } } per entry. Fewer
-- than `limit` where they have more than 4 MiB.
local function dead_entries(dead, reason, dead_body, start, limit)
  local page, rows = redis.call('ZRANGE', dead, start, start + limit - 1, 'WITHSCORES'), {}
  local left = 4194304
  for i = 1, #page, 2 do
    if left <= 0 then
      break
    end
    local packed = redis.call('HGET', dead_body, page[i])
    left = left - (packed and #packed or 0)
    local why = redis.call('HGET', reason, page[i])
    rows[#rows + 1] = { page[i], page[i + 1], why or '', packed and cmsgpack.unpack(packed) or {} }
  end
  return rows
end
