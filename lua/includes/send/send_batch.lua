-- What the three sends share, from the backlog's bound to the totals. Scores in `messages` (score, content, ... from
-- `at` on) are absolute by now. `lowest`: the earliest due time of the batch as text, '0' for at once. Returns the
-- reply. Each command costs a single send as much as storing it: what is not there is not asked for, and the first
-- write is also the check of its key.
-- Consumers get a hint where nothing was due as early as `lowest`. A due one may be hidden by its twin in flight, and
-- while few are in store, all of them: then only a later one counts, or none.
-- @include whole
-- @include hint
-- @include store_batch
-- @include store_each
-- @include check_backlog
-- @include begin_store
local function send_batch(slot, publish, max_backlog, detailed, number, messages, at, keep_first, lowest, now_ms)
  local in_flight, had_bodies = 0, false
  if redis.call('EXISTS', slot.prepare, slot.body) > 0 then
    in_flight, had_bodies = redis.call('ZCARD', slot.prepare), redis.call('HLEN', slot.body) > 0
  end
  local waited_for = 0
  if lowest ~= '0' then
    waited_for = redis.call('ZCOUNT', slot.store, in_flight > 0 and '(' .. whole(now_ms) or '-inf', lowest)
  end
  if in_flight > 0 or max_backlog > 0 or lowest == '0' then
    local size = redis.call('ZCARD', slot.store)
    if size <= in_flight then
      waited_for = 0
    end
    local refusal = check_backlog(slot.store, size, max_backlog, messages, at, number)
    if refusal then
      return refusal
    end
  end
  local accepted = redis.call('HINCRBY', slot.meta, 'accepted', whole(number))
  local with_bodies = #messages >= at + 2 * number
  if with_bodies and accepted == number and not had_bodies then
    redis.call('HSET', slot.meta, 'body_bound', '4096') -- the slot's first messages: no body is older
  end
  local new
  local outcomes, begun = '', begin_store(slot.store, messages, at + 1, 2, number)
  if detailed or had_bodies or with_bodies then
    new, outcomes = store_each(slot, keep_first, messages, at, number)
  else
    new = store_batch(slot, keep_first, messages, at, number)
  end
  if begun then
    end_skiplist(slot.store, '-inf')
  end
  if new < number then
    redis.call('HINCRBY', slot.meta, 'merged', whole(number - new))
  end
  if waited_for == 0 and (new > 0 or not keep_first) then
    hint(publish, slot.wake, lowest)
  end
  return { new, outcomes }
end
