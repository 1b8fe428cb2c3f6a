-- Go on searching one slot for contents that match a pattern.
--
-- KEYS[1]  store      ZSET  content -> score
-- KEYS[2]  prepare    ZSET  content -> claim score
-- KEYS[3]  retry      ZSET  content -> retry score
-- KEYS[4]  dead       ZSET  content -> time of death, ms
-- KEYS[5]  body       HASH  content -> body
-- KEYS[6]  dead_body  HASH  content -> body of the dead
-- KEYS[7]  reason     HASH  content -> why it died, JSON
-- KEYS[8]  held?      HASH  content -> record of what is in flight or waits; only where the topic merges
-- ARGV[1]  pattern    with * ? and [...]
-- ARGV[2]  count      about how many entries to go over in each section, 1 to 1,000
-- ARGV[3]  most_body  bytes of a body to hand over
-- ARGV[4]  store_cursor    where to go on in store: 0 to begin, empty to leave it out
-- ARGV[5]  prepare_cursor  likewise in prepare
-- ARGV[6]  retry_cursor    likewise in retry
-- ARGV[7]  dead_cursor     likewise in dead
-- Returns: { now_ms, { next cursor of each section, '0' at its end, '' if left out }, { section from 1, content,
--   score, bytes of its body or -1, beginning of the body, reason, ... } }; bodies only up to 4 MiB in all
-- Errors: none of its own
-- Complexity: O(count)
-- Notes: reads only. A small section is gone over at once. What is there all the time is found at least once.
-- @include clock, redis

local sections = { KEYS[1], KEYS[2], KEYS[3], KEYS[4] }
local body, dead_body, reason = KEYS[5], KEYS[6], KEYS[7]
local held = KEYS[8] or body
local pattern, count, most_body = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local cursors = { ARGV[4], ARGV[5], ARGV[6], ARGV[7] }

local found, left = {}, 4194304
for section, cursor in ipairs(cursors) do
  if cursor ~= '' then
    local items
    cursors[section], items = scan_within(sections[section], cursor, pattern, count, 1048576)
    local bodies = section == 4 and dead_body or section == 1 and body or held
    for i = 1, #items, 2 do
      local content, size, begin = items[i], -1, ''
      if redis.call('HEXISTS', bodies, content) == 1 then
        size = redis.call('HSTRLEN', bodies, content)
        left = left - size
        if left >= 0 then
          begin = string.sub(redis.call('HGET', bodies, content), 1, most_body)
        end
      end
      local why = section == 4 and redis.call('HGET', reason, content) or ''
      for _, value in ipairs({ whole(section), content, items[i + 1], whole(size), begin, why }) do
        found[#found + 1] = value
      end
    end
  end
end
return { whole(read_clock()), cursors, found }
