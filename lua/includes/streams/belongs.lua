-- Whether what is held in this name is the consumer's: its own name, or that of one of its claims, see holder_of.
local function belongs(name, consumer)
  return name == consumer or string.sub(name, 1, #consumer + 1) == consumer .. '#'
end
