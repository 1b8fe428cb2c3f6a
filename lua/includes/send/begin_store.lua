-- Lets a store that would be a list begin as a skiplist: see begin_skiplist; the score is '-inf'. `names`: holds the
-- `number` contents that are to be added, from `first` on, each so many `step` behind the one before.
-- @include skiplist
local LONG = string.rep('-', 65)

local function begin_store(store, names, first, step, number)
  if number < 32 or redis.call('ZCARD', store) > 128 then
    return false
  end
  for i = first, first + step * (number - 1), step do
    if names[i] == LONG then
      return false
    end
  end
  return begin_skiplist(store, number, '-inf', LONG)
end
