-- Folds a send into the record that its content has, as text: as `fold_sent`, without a table where it can do without
-- one, since this is what a merging send costs. `sent`: the record of the send, with its times. Returns the text, or
-- nil and why not; whether the send has the newest version; and of the folded record, where they are known, `first`,
-- the count and the number of items.
-- @include records
-- @include write_record
-- @include fold_sent
local unpack_record, pack_record, sub = struct.unpack, struct.pack, string.sub

local function fold_text(rules, text, sent, held_bytes)
  local kind, now_ms = sent.kind, sent.last
  if #text > 36 then
    local mark, count, first, last, number, stored_kind = unpack_record('<c4ddddc1', text)
    local value, folded = nil, stored_kind == kind and first > 0 and mark == '\0rm1'
    if not folded then
      value = nil
    elseif kind == 'K' then
      value = #text > 37 and sub(text, 38) or ''
    elseif kind == 'S' then
      number, value = number + sent.number, ''
      folded = number <= 9007199254740991 and number >= -9007199254740991
    elseif kind == 'X' or kind == 'I' then
      if (kind == 'X') == (sent.number > number) then
        number = sent.number
      end
      value = ''
    elseif kind == 'R' then
      value = sent.value
      if is_bodiless(value) then
        local standing = sub(text, 38)
        value = is_bodiless(standing) and value or standing
      end
    elseif kind == 'N' then
      if number > sent.number then
        value = sub(text, 38)
      else
        number, value = sent.number, sent.value
      end
    elseif kind == 'C' and held_bytes == 0 then
      number, value = number + sent.number, sub(text, 38) .. sent.value
      folded = number <= rules.max_items and #value <= rules.max_bytes
    else
      folded = false
    end
    if folded then
      if now_ms > last then
        last = now_ms
      end
      if now_ms < first then -- the clock was set back
        first = now_ms
      end
      count = count + sent.count
      local head = pack_record('<c4ddddc1', '\0rm1', count, first, last, number, kind)
      return value == '' and head or head .. value, nil, kind ~= 'N' or number == sent.number, first, count, number
    end
  end
  local stored = read_record(text)
  if stored.first == 0 then -- written by hand, without a record
    stored.first, stored.last = now_ms, now_ms
  end
  local record, refusal = fold_sent(rules, stored, sent, held_bytes)
  local newest = not (kind == 'N' and stored.kind == 'N' and stored.number > sent.number)
  if not record then
    return nil, refusal, newest
  end
  return write_record(record), nil, newest, record.first, record.count, record.number
end

-- What that costs: see fold_cost.
local function fold_text_cost(text, sent)
  local kind = sent.kind
  local cost = (kind == 'C' or kind == 'U' or kind == 'J') and 8 * #text or 2 * #text
  if kind == 'U' or kind == 'J' then
    local most = #text / 4
    local number = #text > 36 and unpack_record('<d', text, 29) or 0
    number = number > 0 and number < most and number or most
    cost = cost + (#sent.value > 128 and 768 or 100) * (number + sent.number)
  end
  return cost
end
