-- How many messages of a batch a replay of it has: false for all; after `max_replays` half, a quarter, ... one, and in
-- the end 0: the one that was left dies.
local function share_of(chunk, size, max_replays)
  local steps = chunk.replays - max_replays
  if steps <= 0 then
    return false
  end
  return math.max(math.floor(size / 2 ^ steps), #chunk.items > 2 and 1 or 0)
end
