-- Acks claims that read new entries in a name of their own, all of each: from ARGV[at] on how many, then score and
-- number of entries of each. `taken` is the stamp of the last time at which deliveries were taken from their holders.
-- Returns the scores of those that have to be acked by name: some of their entries may belong to somebody else by now.
-- @include count
-- @include holder_of
local function settle_whole_reads(slot, at, taken, totals)
  local unmatched = {}
  for i = at + 1, at + 2 * tonumber(ARGV[at]), 2 do
    local name, _, stamp = holder_of(slot, tonumber(ARGV[i]))
    local acked = stamp and stamp > taken and redis.call('XGROUP', 'DELCONSUMER', slot.store, slot.group, name) or 0
    if acked == 0 then
      unmatched[#unmatched + 1] = ARGV[i]
    end
    count(totals, 'acked', acked)
  end
  return unmatched
end
