-- The totals that most claims change, as fields of meta and their new values: they are written along with the stamp,
-- and leave `totals`. `stored`: what check_fence has read.
-- @include whole
local function fields_of(totals, stored)
  local fields = {}
  for i, name in ipairs({ 'delivered', 'acked' }) do
    local before = tonumber(stored[5 + i] or 0)
    if totals[name] and before then
      fields[#fields + 1], fields[#fields + 2] = name, whole(before + totals[name])
      totals[name] = nil
    end
  end
  return fields
end
