-- A line in the slot's audit: who steered what, on which content (empty for none), and what came of it. Nobody's
-- (`actor` empty) is not written down: a larger step has its own line. Keeps about the last 1,000.
local function note(audit, actor, action, content, detail, outcome)
  if actor ~= '' then
    redis.call('XADD', audit, 'MAXLEN', '~', 1000, '*', 'actor', actor, 'action', action, 'content', content,
      'detail', detail, 'outcome', outcome)
  end
end
