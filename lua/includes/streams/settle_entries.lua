-- Nacks and acks of a group, in the form of settle_nacks and settle_acks: the id stands for the content, the delivery
-- score (see holder_of) for the claim score. Compare-and-set on holder and delivery count: the others go into `stale`
-- and nothing changes for them. `slot.plain`: no entry of the group has failed before. Notes in `slot.left` the names
-- of claims that it takes from. Once the dead have used up the bytes of `slot.budget`, 4 MiB without one, the nacks
-- behind them are left as they are. Returns how many came back that are due at once, where ARGV goes on, and how many
-- nacks were looked at.
-- @include count
-- @include held_counts
-- @include holder_of
local function settle_entries(slot, at, now_ms, max_retries, totals, stale, lost)
  local last, back, nacked, budget = at + 6 * tonumber(ARGV[at]), 0, 0, slot.budget or { bytes = 4194304 }
  if last > at then
    -- @include failure_of
    -- @include record_failure
    -- @include bury_entry
    -- @include park
    for i = at + 1, last, 6 do
      if budget.bytes <= 0 then
        break
      end
      nacked = nacked + 1
      local id, verb, number = ARGV[i], ARGV[i + 2], tonumber(ARGV[i + 3])
      local holder, deliveries, own = holder_of(slot, tonumber(ARGV[i + 1]))
      local row = redis.call('XPENDING', slot.store, slot.group, id, id, 1)[1]
      if own then
        slot.left[holder] = true
      end
      if not row or row[2] ~= holder or row[4] ~= deliveries then
        stale[#stale + 1] = id
      elseif verb == 'release' then
        park(slot, id, deliveries - 1, 0, totals, lost)
        count(totals, 'released', 1)
        back = back + 1
      else
        local failure = failure_of(slot, id, deliveries == 1, now_ms, ARGV[i + 4], ARGV[i + 5])
        if verb == 'bury' or (verb == 'retry' and deliveries > max_retries) then
          budget.bytes = budget.bytes - bury_entry(slot, id, failure, deliveries, now_ms, totals, lost)
        else
          record_failure(slot, id, failure)
          local counted = verb == 'spare' and deliveries - 1 or deliveries
          park(slot, id, counted, number > 0 and now_ms + number or 0, totals, lost)
          count(totals, 'retried', 1)
          back = back + (number > 0 and 0 or 1)
        end
      end
    end
  end
  at = last + 2
  local has_errors = not slot.plain and redis.call('HLEN', slot.error) > 0
  for _ = 1, tonumber(ARGV[last + 1]) do
    local holder, deliveries, own = holder_of(slot, tonumber(ARGV[at]))
    local stop = at + 1 + tonumber(ARGV[at + 1])
    if own then
      slot.left[holder] = true
    end
    for first = at + 2, stop, 1000 do
      local ids, mine = { unpack(ARGV, first, math.min(first + 999, stop)) }, {}
      local counts = held_counts(slot, ids, holder)
      for _, id in ipairs(ids) do
        local list = counts[id] == deliveries and mine or stale
        list[#list + 1] = id
      end
      if #mine > 0 then
        count(totals, 'acked', redis.call('XACK', slot.store, slot.group, unpack(mine)))
        if has_errors then
          redis.call('HDEL', slot.error, unpack(mine))
        end
      end
    end
    at = stop + 1
  end
  return back, at, nacked
end
