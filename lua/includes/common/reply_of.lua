-- The part of one slot in a call for several of them: an error there is its reply, as text, and harms no other slot.
local function reply_of(work, ...)
  local done, reply = pcall(work, ...)
  if type(reply) == 'table' and reply.err then
    reply = reply.err
  end
  return done and reply or tostring(reply)
end
