-- Claim scores of one stamp, times 1,000, as Redis writes them: by retries left. Each is put into text but once.
-- @include contents_of
-- @include whole
local function scores_from(base)
  return setmetatable({}, {
    __index = function(known, left)
      known[left] = whole(base + left)
      return known[left]
    end,
  })
end

-- What a chunk still holds: in prepare with exactly the claim score that the chunk gave it, by its stamp. Items are
-- flat: content, store score; `left` is how many retries each has left after this delivery, or a table of them where
-- they differ. Returns the held items, their contents, and their `left`.
local function held_in_chunk(slot, chunk)
  local items, left = chunk.items, chunk.left
  local names = contents_of(items)
  if #names == 0 then
    return items, names, left
  end
  local scores, uniform = scores_from(chunk.stamp * 1000), type(left) == 'number'
  local score = uniform and scores[left]
  local found, lost = redis.call('ZMSCORE', slot.prepare, unpack(names)), 0
  for n = 1, #names do
    if found[n] ~= (score or scores[left[n]]) then
      found[n] = false
      lost = lost + 1
    end
  end
  if lost == 0 then
    return items, names, left
  end
  local held, contents, lefts = {}, {}, {}
  for n = 1, #names do
    if found[n] then
      held[#held + 1] = names[n]
      held[#held + 1] = items[2 * n]
      contents[#contents + 1] = names[n]
      lefts[#lefts + 1] = uniform and left or left[n]
    end
  end
  return held, contents, uniform and left or lefts
end
