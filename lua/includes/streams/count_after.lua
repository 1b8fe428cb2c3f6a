-- How many entries come after an id, and whether these are all: it counts up to 1,000, or 1 MiB.
local function count_after(store, id)
  local number, bytes = 0, 0
  local page
  repeat
    page = redis.call('XRANGE', store, '(' .. id, '+', 'COUNT', 10)
    for _, entry in ipairs(page) do
      number, id = number + 1, entry[1]
      for _, text in ipairs(entry[2]) do
        bytes = bytes + #text
      end
    end
  until #page < 10 or number >= 1000 or bytes >= 1048576
  return number, #page < 10
end
