-- Reads how a topic merges: the packed argument `rules` of sends, a JSON object that a client makes once for a topic.
--   kind         RANGE_MERGE, FIXED_TIME or PRIORITY
--   max_backlog  most messages in a slot's store; 0 for no bound
--   drop         true: beyond max_backlog, drop what would be delivered last; false: refuse the batch
--   max_retries  0 to 999
--   ttl          true: note the time of sending in born
--   scale        PRIORITY, oldest first: of the scores, see aged; else 1
--   unit_ms      PRIORITY, oldest first: of the ages; else 1
--   highest      PRIORITY: largest priority
--   priority     PRIORITY: last, highest, lowest or sum
--   window       RANGE_MERGE: fixed, sliding, leading or trailing
--   max_wait     sliding: ms from the first send to the latest due time
--   max_count    due at once with so many sends; 0 for no bound
--   max_items    most items of a message; 0 where it has none
--   max_bytes    most bytes of its items
--   when_full    release, refuse, drop_oldest or drop_newest
-- Whole numbers are at most 2^53 - 1, as `Topic` checks: a double of Lua holds them. Added are `publish`, the command
-- for the wake hint; `lowest`, the least value of a batch (FIXED_TIME); `plain`: no send puts off a message
-- in store; and `completes`: a message may be due before its time.
local function merge_rules(packed, lowest, publish)
  local rules = cjson.decode(packed)
  local timed = rules.kind == 'RANGE_MERGE'
  rules.lowest, rules.publish = tonumber(lowest), publish
  rules.completes = timed and (rules.max_count > 0 or rules.max_items > 0)
  rules.plain = timed and rules.window == 'fixed'
  return rules
end
