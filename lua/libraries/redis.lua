-- Commands of Redis with a bound, in the form that costs the server least: numbers as digits, pages by bytes, sizes,
-- wake hints, and the audit.

local digits = {}

-- A whole number as digits. Lua's own conversion keeps 14 of them and then turns to exponents. The same few times are
-- asked for again and again within a call, so they are kept. A rank goes to Redis as such a text, too: it would turn a
-- number into 17 digits.
local function whole(number)
  local text = digits[number]
  if not text then
    text = string.format('%.0f', number)
    digits[number] = text
  end
  return text
end

-- The contents of flat items: content, score, ...
local function contents_of(items)
  local contents = {}
  for i = 1, #items, 2 do
    contents[#contents + 1] = items[i]
  end
  return contents
end

-- Sets fields of a hash, names and values in turn. Redis keeps a small hash as a list, in which each field is searched
-- for from the beginning; a value above `hash-max-listpack-value` (64 bytes; 6.2: `hash-max-ziplist-value`) makes it a
-- table, and one it stays until it is gone. So a new one begins with such a value, which then goes again.
local function fill_hash(hash, fields)
  if redis.call('EXISTS', hash) == 0 then
    redis.call('HSET', hash, '', string.rep(' ', 65), unpack(fields))
    redis.call('HDEL', hash, '')
  else
    redis.call('HSET', hash, unpack(fields))
  end
end

-- Redis keeps a small sorted set as a list, in which each ZADD searches for the member, and then for its place, from
-- the beginning. A member above `zset-max-listpack-value`, 64 bytes (6.2: `zset-max-ziplist-value`), makes it a
-- skiplist, and one it stays until it is gone. So who adds many members begins with such a one, of a name that none of
-- them has, and removes it by its score, which no other member has. The removal comes first, too: without the right to
-- it nothing is added. Returns whether there is something to remove.
local function begin_skiplist(set, number, score, name)
  if number < 32 or type(redis.pcall('ZREMRANGEBYSCORE', set, score, score)) == 'table' then
    return false
  end
  return redis.call('ZADD', set, 'NX', score, name) == 1
end

local function end_skiplist(set, score)
  redis.call('ZREMRANGEBYSCORE', set, score, score)
end

local QUIET = { quiet = true, retry = 0, dead = 0, body = 0, error = 0 }

-- Sizes of the structures of a slot. Since a read fails on a key of a foreign type, it is also the check that no
-- later write can fail half-way. Most slots have but store, prepare and meta: then one command sees that, `quiet`.
-- Others have bodies beside them, and no more: `bodied`.
-- `others_only`: in such slots leave out store and prepare, for who reads them before its first write, or never writes.
local function measure(slot, others_only)
  local others = redis.call('EXISTS', slot.retry, slot.dead, slot.body, slot.error, slot.reason, slot.dead_body,
    slot.held or slot.body) -- the bodies count twice where nothing is held
  if others == 0 and others_only then
    return QUIET
  end
  local body = others > 0 and redis.call('HLEN', slot.body) or 0
  local sizes = { quiet = others == 0, bodied = others == 2 and body > 0 and not slot.held, body = body }
  local plain = sizes.quiet or sizes.bodied
  if not (plain and others_only) then
    sizes.store, sizes.prepare = redis.call('ZCARD', slot.store), redis.call('ZCARD', slot.prepare)
  end
  sizes.retry, sizes.dead, sizes.error = 0, 0, 0
  if not plain then
    sizes.retry, sizes.dead = redis.call('ZCARD', slot.retry), redis.call('ZCARD', slot.dead)
    sizes.error, sizes.reason = redis.call('HLEN', slot.error), redis.call('HLEN', slot.reason)
    sizes.dead_body = redis.call('HLEN', slot.dead_body)
    sizes.held = slot.held and redis.call('HLEN', slot.held)
  end
  return sizes
end

-- The bodies of the first of up to 1,000 contents, as many as have `most_bytes` in all with contents; one at least.
-- Returns them, false for one that has none, and how many contents they are of; no bodies where none has one.
local function bodies_within(hash, contents, most_bytes)
  local bodied = #contents > 0 and redis.call('HLEN', hash) > 0
  local number, left = 0, most_bytes
  for i, content in ipairs(contents) do
    left = left - #content - (bodied and redis.call('HSTRLEN', hash, content) or 0)
    if left < 0 and i > 1 then
      break
    end
    number = i
  end
  return bodied and redis.call('HMGET', hash, unpack(contents, 1, number)) or {}, number
end

-- Reads a page of a sorted set by ranks, with scores: up to `limit` messages, and not many more than 4 MiB of contents.
-- Of these it reads the bodies from a hash, as many as have 4 MiB with their contents, one at least. It reads piece by
-- piece, since how large they are shows only then. Returns the page, its contents, their bodies (false for none; an
-- empty table where none has one), and whether bytes ended it.
local function read_within(command, zset, hash, start, limit)
  local page, contents, left, more = {}, {}, 4194304, true
  while more and #contents < limit and left > 0 do
    local wanted, first = math.min(limit - #contents, 128), start + #contents
    local piece = redis.call(command, zset, first, first + wanted - 1, 'WITHSCORES')
    for i = 1, #piece, 2 do
      page[#page + 1], page[#page + 2] = piece[i], piece[i + 1]
      contents[#contents + 1] = piece[i]
      left = left - #piece[i]
    end
    more = #piece == 2 * wanted
  end
  local bodies, number = bodies_within(hash, contents, 4194304)
  more = more and #contents < limit or number < #contents
  return { unpack(page, 1, 2 * number) }, { unpack(contents, 1, number) }, bodies, more
end

-- Goes over about `count` messages of a sorted set from a cursor on, but not over many more than `most_bytes` of
-- contents: piece by piece, since how large they are shows only then. `pattern`: only those that match. Returns the
-- next cursor, and contents and scores, alternating.
local function scan_within(zset, cursor, pattern, count, most_bytes)
  local found, left = {}, most_bytes
  for first = 1, count, 128 do
    local page = redis.call('ZSCAN', zset, cursor, 'MATCH', pattern, 'COUNT', math.min(128, count - first + 1))
    cursor = page[1]
    for i = 1, #page[2], 2 do
      found[#found + 1] = page[2][i]
      found[#found + 1] = page[2][i + 1]
      left = left - #page[2][i]
    end
    if cursor == '0' or left <= 0 then
      break
    end
  end
  return cursor, found
end

-- Tells consumers that something is due at `due_ms` ('0': at once). A hint comes last, and only saves time: a server
-- that refuses it, as one does to users without a right to the channel, changes no answer.
local function hint(publish, wake, due_ms)
  redis.pcall(publish, wake, due_ms)
end

-- A line in the slot's audit: who steered what, on which content (empty for none), and what came of it. Nobody's
-- (`actor` empty) is not written down: a larger step has its own line. Keeps about the last 1,000, and of a content up
-- to 1,024 bytes: the audit of large contents shall not be larger than the backlog.
local function note(audit, actor, action, content, detail, outcome)
  if actor ~= '' then
    if #content > 1024 then
      local size = 1024
      while size > 1020 and string.find(content, '^[\128-\191]', size + 1) do -- not within a character
        size = size - 1
      end
      detail = (detail == '' and '' or detail .. ', ') .. 'the content has ' .. #content .. ' bytes'
      content = string.sub(content, 1, size)
    end
    redis.call('XADD', audit, 'MAXLEN', '~', '1000', '*', 'actor', actor, 'action', action, 'content', content,
      'detail', detail, 'outcome', outcome)
  end
end
