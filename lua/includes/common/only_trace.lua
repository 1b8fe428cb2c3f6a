-- Whether a stored body is that of a message without one: a trace context in front of nothing. `at`: where the body
-- begins in the text. The layout is that of rmq/_model/records.py.
local function only_trace(text, at)
  return string.find(text, '^%zrmq:trace%z[^%z]*%z0', at) ~= nil
end
