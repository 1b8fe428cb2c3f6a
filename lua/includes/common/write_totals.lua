-- Adds to the slot's counters: name -> how many.
local function write_totals(meta, totals)
  for name, number in pairs(totals) do
    if number ~= 0 then
      redis.call('HINCRBY', meta, name, number)
    end
  end
end
