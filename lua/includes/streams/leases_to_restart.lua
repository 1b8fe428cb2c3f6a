-- From where on the leases of a group's deliveries have to begin once more, see restart_leases; nil where they have
-- not. Also whether it is time to note Redis' time again.
local function leases_to_restart(stored, now_ms, lease_ms)
  local seen, upto = string.match(stored or '', '^(%d+) ?(%S*)$')
  seen = tonumber(seen or 0)
  if seen > now_ms then
    return '-', true
  end
  return upto and upto ~= '' and '(' .. upto or nil, now_ms - seen >= math.min(1000, lease_ms / 10)
end
