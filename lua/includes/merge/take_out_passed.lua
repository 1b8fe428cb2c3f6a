-- Takes those of `number` sends, as `plan_sends` takes them, out of ARGV whose fixed time does not lie ahead. Returns
-- how many are left, and by place among all their places now. Where all have one value, that is that of none, or of
--   all.
local function take_out_passed(at, number, values, now_ms)
  local contents, times, records, places = {}, {}, {}, {}
  local first_value, first_record = at + number, at + number + values
  local same_record = #ARGV == first_record
  for i = 1, number do
    local due_ms = ARGV[first_value + (values == 1 and 0 or i - 1)]
    if tonumber(due_ms) > now_ms then
      local place = #contents + 1
      places[i], contents[place], times[place] = place, ARGV[at + i - 1], due_ms
      if place == 1 or not same_record then
        records[place] = ARGV[first_record + (same_record and 0 or i - 1)]
      end
    end
  end
  for i = #ARGV, at, -1 do
    ARGV[i] = nil
  end
  for _, list in ipairs({ contents, times, records }) do
    for _, text in ipairs(list) do
      ARGV[#ARGV + 1] = text
    end
  end
  return #contents, places
end

-- The outcomes of all sends: 4 for those that were taken out; none from the first one on that the plan has left.
local function with_passed(outcomes, places, number)
  local all = {}
  for i = 1, number do
    local outcome = places[i] and outcomes[places[i]] or '4'
    if places[i] and not outcomes[places[i]] then
      break
    end
    all[i] = outcome
  end
  return all
end
