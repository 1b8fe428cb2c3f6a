-- How many messages of a batch a replay of it has: false for all; after `max_replays` half of what the last one had,
-- and in the end 0: the one that was left dies. The chunk notes it, so that a `max_replays` that was lowered skips no
-- half: else all chunks with one message would die at once.
local function share_of(chunk, size, max_replays)
  if chunk.replays <= max_replays then
    return false
  end
  chunk.share = math.floor((chunk.share or size) / 2)
  return chunk.share
end
