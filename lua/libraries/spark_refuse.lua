-- Rows of a chunk that its query refuses: noted beside its list, and settled at the ack.

-- Where rows of a chunk stand that its query refuses, beside the chunk's list, until the ack: see `read_refused`.
local function refused_field(field)
  return field .. ':refused'
end

-- What a query has refused of a chunk by now, nil for nothing: `of` has for a content the number of one of `hows`, and
-- each of these has the verb, `bury` or `back`, a delay in ms, an error type and an error message.
local function read_refused(query, field)
  local text = redis.call('HGET', query, refused_field(field))
  return text and cmsgpack.unpack(text) or nil
end

-- Ends those messages of a committed chunk that its query has refused: they die, or wait for their retry, as after a
-- nack, as far as `slot.budget` goes. `left`: the retries left of each of `names`, or of all. Returns the names that
-- were not refused, how many have ended, and whether others are left for the next call.
local function settle_refused(slot, names, left, refused, max_retries, now_ms, totals)
  -- @include dead, failures, settlements
  local others, ended, more, budget = {}, 0, false, slot.budget
  for n, content in ipairs(names) do
    local how = refused.hows[refused.of[content] or 0]
    if not how then
      others[#others + 1] = content
    elseif budget.bytes <= 0 then
      more = true
    else
      ended = ended + 1
      local still = type(left) == 'number' and left or left[n]
      local failure = failure_of(slot, content, still == max_retries, now_ms, how[3], how[4], totals)
      if how[1] == 'bury' or still == 0 then
        budget.bytes = budget.bytes - bury(slot, content, failure, max_retries - still + 1, now_ms, totals)
      else
        record_failure(slot, content, failure)
        budget.bytes = budget.bytes - roll_back(slot, content, still, now_ms + how[2], now_ms, totals)
      end
    end
  end
  return others, ended, more
end

-- The chunk as it would be without what was refused: of that nothing counts as committed, wherever it is by now.
local function without_refused(chunk, refused)
  local kept = { stamp = chunk.stamp, put_back = chunk.put_back, items = {}, left = {} }
  for n = 1, #chunk.items / 2 do
    local content = chunk.items[2 * n - 1]
    if not refused.of[content] then
      kept.items[#kept.items + 1], kept.items[#kept.items + 2] = content, chunk.items[2 * n]
      kept.left[#kept.items / 2] = type(chunk.left) == 'number' and chunk.left or chunk.left[n]
    end
  end
  return kept
end
