-- Where rows of a chunk stand that its query refuses, beside the chunk's list, until the ack: see `read_refused`.
local function refused_field(field)
  return field .. ':refused'
end
