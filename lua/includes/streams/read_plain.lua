-- Hands over the plain entries at the beginning of a page, those with a content and nothing else, as two columns: that
-- is most of what a claim costs. Only while no other entry stands behind the columns, to keep the order. Returns how
-- many there were.
local function read_plain(page, out)
  local ids, contents, bytes, largest = out.ids, out.contents, 0, out.largest
  local before, number = #ids, 0
  if out.tail[1] then
    return 0
  end
  for i = 1, #page do
    local entry = page[i]
    local values = entry[2]
    local content = values[2]
    if values[3] or values[1] ~= 'content' then
      break
    end
    ids[before + i], contents[before + i] = entry[1], content
    local size = #content + 7
    bytes, number = bytes + size, i
    if size > largest then
      largest = size
    end
  end
  out.number, out.left, out.largest = out.number + number, out.left - bytes, largest
  return number
end
