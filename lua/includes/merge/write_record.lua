-- The text of a record, see records.
local function write_record(record)
  return struct.pack('<c4ddddc1', '\0rm1', record.count, record.first, record.last, record.number, record.kind)
    .. record.value
end
