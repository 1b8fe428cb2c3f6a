-- Stores a batch, see read_batch: all that sends share, from the backlog's bound to the totals. Its scores are absolute
-- by now. `rules`: `publish`, `max_backlog`, `detailed` and `keep_first`, see `send` and store_each. `lowest`: the
-- earliest due time of the batch as text, '0' for at once. Returns the reply. Each command costs a single send as much
-- as storing it: what is not there is not asked for, and the first write is also the check of its key.
-- Consumers get a hint where nothing was due as early as `lowest`. A due one may be hidden by its twin in flight, and
-- while few are in store, all of them: then only a later one counts, or none.
-- @include whole
-- @include hint
-- @include store_batch
local function send_batch(slot, rules, batch, lowest, now_ms)
  local in_flight, had_bodies, number, keep_first = 0, false, batch.number, rules.keep_first
  if redis.call('EXISTS', slot.prepare, slot.body) > 0 then
    in_flight, had_bodies = redis.call('ZCARD', slot.prepare), redis.call('HLEN', slot.body) > 0
  end
  local waited_for = 0
  if lowest ~= '0' then
    waited_for = redis.call('ZCOUNT', slot.store, in_flight > 0 and '(' .. whole(now_ms) or '-inf', lowest)
  end
  if in_flight > 0 or rules.max_backlog > 0 or lowest == '0' then
    local size = redis.call('ZCARD', slot.store)
    if size <= in_flight then
      waited_for = 0
    end
    if rules.max_backlog > 0 and size + number > rules.max_backlog then
      -- @include check_backlog
      local refusal = check_backlog(slot.store, size, rules.max_backlog, batch)
      if refusal then
        return refusal
      end
    end
  end
  local accepted = redis.call('HINCRBY', slot.meta, 'accepted', whole(number))
  local with_bodies = batch.last >= batch.at + 2 * number
  if with_bodies and accepted == number and not had_bodies then
    redis.call('HSET', slot.meta, 'body_bound', '4096') -- the slot's first messages: no body is older
  end
  local finish, new
  local outcomes = ''
  if number >= 32 then
    -- @include begin_store
    finish = begin_store(slot.store, batch.args, batch.at + 1, 2, number) and end_skiplist
  end
  if rules.detailed or had_bodies or with_bodies then
    -- @include store_each
    new, outcomes = store_each(slot, keep_first, batch)
  else
    new = store_batch(slot, keep_first, batch)
  end
  if finish then
    finish(slot.store, '-inf')
  end
  if new < number then
    redis.call('HINCRBY', slot.meta, 'merged', whole(number - new))
  end
  if waited_for == 0 and (new > 0 or not keep_first) then
    hint(rules.publish, slot.wake, lowest)
  end
  return { new, outcomes }
end
