-- Who may change this slot. Reads meta, writes nothing. Returns a refusal or false, whether this epoch is newer
-- than the stored one, whether claims are paused, and what it has read: epoch, ensemble, paused; then the `fields`; or,
-- where these are `true`, what a claim changes: stamp, lease, delivered, acked and body_bound. Epoch 0 stands for a
-- consumer without ZooKeeper.
local function check_fence(meta, epoch, ensemble, fields)
  local stored
  if fields == true then
    stored = redis.call('HMGET', meta, 'epoch', 'ensemble', 'paused', 'stamp', 'lease', 'delivered', 'acked',
      'body_bound')
  else
    stored = redis.call('HMGET', meta, 'epoch', 'ensemble', 'paused', unpack(fields or {}))
  end
  local owner, mine = tonumber(stored[1] or 0), tonumber(epoch)
  if owner > 0 and mine > 0 and stored[2] and stored[2] ~= ensemble then
    return redis.error_reply('RMQ_ENSEMBLE ' .. stored[2]), false, false
  end
  if mine < owner then
    return redis.error_reply('RMQ_FENCED ' .. stored[1] .. ' ' .. epoch), false, false
  end
  return false, mine > owner, stored[3] == '1', stored
end
