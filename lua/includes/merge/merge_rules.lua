-- How a topic merges, as its sends are told: 17 values in the order of the header of `send_merged`. `plain`: no send
-- puts off a message in store; `completes`: a message may be due before its time.
local function merge_rules(values)
  local rules = {
    max_backlog = tonumber(values[1]), kind = values[2], lowest = tonumber(values[3]), drop = values[4] == '1',
    max_retries = tonumber(values[5]), ttl = values[6] == '1', scale = tonumber(values[7]),
    unit_ms = tonumber(values[8]), highest = tonumber(values[9]), priority = values[10], window = values[11],
    max_wait = tonumber(values[12]), max_count = tonumber(values[13]), max_items = tonumber(values[14]),
    max_bytes = tonumber(values[15]), when_full = values[16], publish = values[17],
  }
  local timed = rules.kind == 'RANGE_MERGE'
  rules.completes = timed and (rules.max_count > 0 or rules.max_items > 0)
  rules.plain = timed and rules.window == 'fixed'
  return rules
end
