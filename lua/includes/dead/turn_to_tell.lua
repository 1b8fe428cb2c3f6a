-- Takes or keeps the turn to tell of the dead under a name, which one holder at a time has for so long, and says where
-- the untold begin. Told is whoever died before `since`, and of those who died in that ms all up to `after`. Only those
-- are told who died a second ago or earlier: Redis' clock may be set back by less, and nobody is passed over. At a
-- first look nobody has to be told who was dead before. Returns the end of what may be told, ms, and the rank of the
-- first; nothing where another one has the turn.
-- @include lease_lock
local function turn_to_tell(slot, turn, now_ms)
  local state, field = slot.state, 'told:' .. turn.name
  local holder, _, told, held = read_lock(state, field, now_ms, 172800000)
  if held and holder ~= turn.holder and (told or 0) <= now_ms then -- else the clock was ahead when that was noted
    return nil
  end
  local ripe = now_ms - 1000
  local since = math.min(math.max(turn.since, told or ripe), ripe)
  redis.call('ZREMRANGEBYRANK', slot.dead, 1, 0) -- removes nothing: allowed at maxmemory, after which writes pass
  write_lock(state, field, turn.holder, now_ms + turn.hold_ms, since)
  local start = redis.call('ZCOUNT', slot.dead, '-inf', '(' .. whole(since))
  if turn.after ~= '' and tonumber(redis.call('ZSCORE', slot.dead, turn.after) or -1) == since then
    start = redis.call('ZRANK', slot.dead, turn.after) + 1
  end
  return ripe, start
end
