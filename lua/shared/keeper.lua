-- Keep nodes as a ZooKeeper does, for the owners of slots: note a session's contact, end silent sessions, and carry out
-- requests of this session.
--
-- KEYS[1]  nodes     HASH  path -> czxid, mzxid, version, session (0: permanent) and data, separated by spaces
-- KEYS[2]  tree      ZSET, scores 0  parent, a zero byte, name
-- KEYS[3]  held      ZSET, scores 0  session, a zero byte, path of an ephemeral node
-- KEYS[4]  sessions  ZSET  session -> its end, ms of the keeper's clock
-- KEYS[5]  timeouts  ZSET  session -> its timeout, ms
-- KEYS[6]  state     HASH  number: of the last transaction; heard: the last call, ms of Redis' clock; clock: the
--   keeper's then, ms; era: number at which this Redis was last found to have lost transactions
-- KEYS[7]  wake      channel
-- ARGV[1]  session     0 for a new one
-- ARGV[2]  timeout_ms  without contact, after which the session ends; 0 ends it now
-- ARGV[3]  known       highest transaction number that the caller has seen
-- ARGV[4]  unless      number of the transaction from which the caller has all answers; 0 for none
-- ARGV[5]  publish     command for the wake hint: PUBLISH or SPUBLISH
-- ARGV[6..] requests   each a verb, a path and two values: look, get; children with 1 for this session's only; create
--   with data and 1 for an ephemeral node; put with data and version; release with the path of a guard and the version,
--   -1 for any, or czxid, which is larger than any version; sync
-- Returns: { session, or 0 where it has ended, number, era, { answer, ... } }; no answers where the session has ended
--   or `number` is `unless`. Answers: look, create: the first four fields of a node; get: the node; children: how many
--   there are, and members of tree, or of held for this session's only; nil for none; put, release, sync: 1 for done
-- Errors: none of its own
-- Complexity: O(requests log N), and of children O(names), up to 65,536; O(log N) for each of the 2,048 nodes of ended
--   sessions that one call deletes at most
-- Notes: atomic. Not to be repeated unseen: a second create finds the node of the first one. A call that got no reply
--   may arrive after later ones of its session: so a release deletes no node of another session, nor one of another
--   czxid. A transaction is numbered with Redis' time in ms, or one above the last one: so numbers also grow after a
--   failover that lost the last ones.
--   The keeper's clock is Redis', without the time in which nobody was heard beyond a third of the smallest timeout:
--   when Redis has stood still, or its clock has jumped, no session ends for it. A bound by the caller's timeout would
--   end shorter sessions; a constant would slow the clock where all timeouts are long, and calls rare. So timeouts are
--   kept. Works at maxmemory, as it begins with a removal.
-- @include clock, fence, redis

local nodes, tree, held, sessions, timeouts, state, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local session, timeout_ms, known, unless = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local publish = ARGV[5]

local now_ms = read_clock()
check_types({ tree, held, sessions, timeouts }, { nodes })
local before = redis.call('HMGET', state, 'number', 'heard', 'clock', 'era')
local number, era = tonumber(before[1] or 0), before[4] or '0'
local passed_ms = now_ms - tonumber(before[2] or now_ms)
local least_ms = tonumber(redis.call('ZRANGE', timeouts, 0, 0, 'WITHSCORES')[2] or 0)
local clock = tonumber(before[3] or 0) + math.max(0, math.min(passed_ms, least_ms / 3))
local changed = false

local function next_number()
  number = math.max(number + 1, now_ms)
  return whole(number)
end

local function note_change()
  changed = true
  return next_number()
end

local function parse(node)
  return string.match(node or '', '^(%d+) (%d+) (%d+) (%d+) (.*)$')
end

local function child_of(path)
  local parent, name = string.match(path, '^(.*)/(.*)$')
  return parent .. '\0' .. name, parent
end

local function remove(path, owner)
  note_change()
  redis.call('HDEL', nodes, path)
  redis.call('ZREM', tree, (child_of(path)))
  redis.call('ZREM', held, owner .. '\0' .. path)
end

local function members_below(set, prefix, limit)
  return redis.call('ZRANGE', set, '[' .. prefix, '(' .. prefix .. '\255', 'BYLEX', 'LIMIT', 0, limit)
end

local function end_silent()
  local left = 2048
  for _, silent in ipairs(redis.call('ZRANGEBYSCORE', sessions, '-inf', whole(clock), 'LIMIT', 0, 16)) do
    local members = members_below(held, silent .. '\0', left)
    for _, member in ipairs(members) do
      remove(string.sub(member, #silent + 2), silent)
    end
    left = left - #members
    if left == 0 then
      return
    end
    redis.call('ZREM', sessions, silent)
    redis.call('ZREM', timeouts, silent)
  end
end

local verbs = {}

function verbs.sync()
  return '1'
end

function verbs.look(path)
  local node = redis.call('HGET', nodes, path)
  return node and string.match(node, '^%d+ %d+ %d+ %d+')
end

function verbs.get(path)
  return redis.call('HGET', nodes, path)
end

function verbs.children(path, own)
  local listed = own == '1' and members_below(held, session .. '\0' .. path .. '/', 65536)
    or members_below(tree, path .. '\0', 65536)
  table.insert(listed, 1, redis.call('ZLEXCOUNT', tree, '[' .. path .. '\0', '(' .. path .. '\1'))
  return redis.call('HEXISTS', nodes, path) == 1 and listed
end

function verbs.create(path, data, ephemeral)
  local child, parent = child_of(path)
  if redis.call('HEXISTS', nodes, path) == 1 or parent ~= '' and redis.call('HEXISTS', nodes, parent) == 0 then
    return false
  end
  local own = note_change()
  local stat = table.concat({ own, own, '0', ephemeral == '1' and session or '0' }, ' ')
  redis.call('HSET', nodes, path, stat .. ' ' .. data)
  redis.call('ZADD', tree, 0, child)
  if ephemeral == '1' then
    redis.call('ZADD', held, 0, session .. '\0' .. path)
  end
  return stat
end

function verbs.put(path, data, version)
  local created, _, current, owner = parse(redis.call('HGET', nodes, path))
  if current ~= version then
    return '0'
  end
  redis.call('HSET', nodes, path, table.concat({ created, note_change(), whole(version + 1), owner, data }, ' '))
  return '1'
end

function verbs.release(path, guard, version)
  local created, _, current, owner = parse(redis.call('HGET', nodes, path))
  local meant = version == '-1' or version == current or version == created
  if redis.call('HEXISTS', nodes, guard) == 0 or created and not (meant and (owner == session or owner == '0')) then
    return '0'
  end
  if created then
    remove(path, owner)
  end
  return '1'
end

redis.call('ZREMRANGEBYRANK', sessions, 1, 0)
if known > number then -- a failover has lost transactions that the caller has seen
  number = known
  era = next_number()
end
if session == '0' then
  session = next_number()
elseif tonumber(redis.call('ZSCORE', sessions, session) or -1) <= clock then
  session = '0'
end
if session ~= '0' then
  redis.call('ZADD', sessions, whole(clock + timeout_ms), session)
  redis.call('ZADD', timeouts, whole(timeout_ms), session)
end
end_silent()
local answers
if session ~= '0' and unless ~= whole(number) then
  answers = {}
  for i = 6, #ARGV, 4 do
    answers[#answers + 1] = verbs[ARGV[i]](ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  end
end
redis.call('HSET', state, 'number', whole(number), 'heard', whole(now_ms), 'clock', whole(clock), 'era', era)
if changed then
  hint(publish, wake, whole(number))
end
return { session, whole(number), era, answers }
