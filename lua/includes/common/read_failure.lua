-- What is known of a failure, as a table; empty where there is none, or no failure's JSON: a value that can't be read
-- must hold up neither a sweep nor the other dead. Fields that another version has added stay.
local function read_failure(text)
  local found = {}
  local fine, value = pcall(cjson.decode, text or '')
  if fine and type(value) == 'table' then
    for name, each in pairs(value) do
      if type(name) == 'string' and type(each) == 'string' then
        found[name] = each
      end
    end
  end
  return found
end
