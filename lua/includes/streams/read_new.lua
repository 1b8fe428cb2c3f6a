-- Reads up to `most` entries that nobody of the group has had yet, until `out` is full. How large they are shows only
-- then. `bound`, the most bytes of any entry where known, tells how many fit for certain. Beyond that, the first
-- `piece` of them tells how many to read next, and `largest`, the size of the largest that is known, bounds it. A copy
-- that was redriven into another group is no business of this one: it is acked at once. All are held in the name of
-- `reader`; a name of a claim's own is dropped where nothing came. Returns whether there may be more, and how many it
-- read.
-- @include count
-- @include hand_over
-- @include read_plain
-- @include pass_over
local function read_new(slot, reader, most, piece, bound, largest, out, totals)
  local read, others = 0, {}
  local more = true
  while more and read < most and not is_full(out) do
    local wanted, certain = most - read, bound and out.largest <= bound and math.floor(out.left / bound) or 0
    if out.number == 0 then
      certain = math.min(certain, 32) -- a release that knows of no bound may have sent what comes
    end
    if wanted > certain then
      local guess = piece
      if out.largest > 0 then
        guess = math.max(1, math.min(guess, math.floor(out.left / out.largest)))
      end
      if largest > 0 then
        -- the definition that `piece` is made of may have had a larger bound when the largest entry was sent
        local few = math.max(1, math.min(4, math.floor(9437184 / largest)))
        guess = math.min(guess, math.max(few, math.floor(out.left / largest)))
      end
      wanted = math.min(wanted, math.max(certain, guess))
    end
    if slot.again then
      wanted = pass_over(slot, wanted, totals)
      if wanted == 0 then
        break -- there is more to pass over
      end
    end
    local reply =
      redis.call('XREADGROUP', 'GROUP', slot.group, reader, 'COUNT', wanted, 'STREAMS', slot.store, '>')
    local page = reply and reply[1][2] or {}
    for i = read_plain(page, out) + 1, #page do
      local entry = page[i]
      if entry[2][1] == 'rmq:group' and entry[2][2] ~= slot.group then
        others[#others + 1] = entry[1]
      else
        hand_over(out, entry, reader == slot.consumer and 1 or 0)
      end
    end
    read, piece, more = read + #page, 4 * piece, #page == wanted
  end
  if #others > 0 then
    count(totals, 'skipped', redis.call('XACK', slot.store, slot.group, unpack(others)))
  end
  if reader ~= slot.consumer and read == #others then
    redis.call('XGROUP', 'DELCONSUMER', slot.store, slot.group, reader)
  end
  count(totals, 'fresh', read - #others)
  count(totals, 'delivered', read - #others)
  return more, read - #others
end
