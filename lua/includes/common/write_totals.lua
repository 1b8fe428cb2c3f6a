-- Adds to the slot's counters: name -> how many.
-- @include whole
local function write_totals(meta, totals)
  for name, number in pairs(totals) do
    if number ~= 0 then
      redis.call('HINCRBY', meta, name, whole(number))
    end
  end
end
