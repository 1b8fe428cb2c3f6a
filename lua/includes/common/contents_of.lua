-- The contents of flat items: content, score, ...
local function contents_of(items)
  local contents = {}
  for i = 1, #items, 2 do
    contents[#contents + 1] = items[i]
  end
  return contents
end
