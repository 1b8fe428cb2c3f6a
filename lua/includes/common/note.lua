-- A line in the slot's audit: who steered what, on which content (empty for none), and what came of it. Nobody's
-- (`actor` empty) is not written down: a larger step has its own line. Keeps about the last 1,000, and of a content up
-- to 1,024 bytes: the audit of large contents shall not be larger than the backlog.
local function note(audit, actor, action, content, detail, outcome)
  if actor ~= '' then
    if #content > 1024 then
      local size = 1024
      while size > 1020 and string.find(content, '^[\128-\191]', size + 1) do -- not within a character
        size = size - 1
      end
      detail = (detail == '' and '' or detail .. ', ') .. 'the content has ' .. #content .. ' bytes'
      content = string.sub(content, 1, size)
    end
    redis.call('XADD', audit, 'MAXLEN', '~', '1000', '*', 'actor', actor, 'action', action, 'content', content,
      'detail', detail, 'outcome', outcome)
  end
end
