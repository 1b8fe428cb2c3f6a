-- Sends a chunk of a task of Spark by `send`, unless it was sent before: its mark in the hash `sent` is that of a later
-- batch, or of this one with the same digest. Then it returns nil. `chunk`: its name, the number of the batch, the
-- digest of its messages, and for how many seconds marks are kept after the last send of the query to this slot.
-- @include completed
local function send_chunk(sent, chunk, now_ms, send)
  local name, batch, digest, keep_s = string.match(chunk, '^(%S+) (%d+) (%S+) (%d+)$')
  local call = { number = batch, floor = tonumber(batch), digest = digest }
  local keep = { key_ms = keep_s * 1000, noted_ms = 0 }
  local known = completed(sent, name, call, keep, now_ms)
  if known.floor > call.floor or known.digest == digest then
    return nil
  end
  local reply = send()
  if not reply.err then
    complete(sent, name, call, '', keep, known, now_ms)
  end
  return reply
end
