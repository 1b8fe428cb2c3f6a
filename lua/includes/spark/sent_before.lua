-- What is answered for a chunk of a task of Spark that was sent before, nil if it is to be sent: its mark is that of a
-- later batch, or of this one with the same digest, whatever was refused of it. Where its calls took the first messages
-- only, the reply that is kept is how many of them are sent, and what follows these is to be sent. Other messages are
-- refused if the sends are counted (`strict`), and else sent.
local function sent_before(known, call, strict, first)
  if known.floor > call.floor or known.digest == call.digest and known.reply == '' then
    return { 0, '', '0', '', '' }
  end
  local own, without = string.match(known.digest or '', '^(%x*)%-?([%d.]*)$')
  local same = own == string.match(call.digest, '^%x*')
  if known.digest and same and known.reply ~= first then
    return { 0, '', '0', without, known.reply }
  end
  return known.digest and strict and not same and redis.error_reply('RMQ_CHANGED ' .. call.number) or nil
end
