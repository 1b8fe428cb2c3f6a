-- Who may change this slot. Reads meta, writes nothing. Returns a refusal or false, whether this epoch is newer
-- than the stored one, and whether claims are paused. Epoch 0 stands for a consumer without ZooKeeper.
local function check_fence(meta, epoch, ensemble)
  local stored = redis.call('HMGET', meta, 'epoch', 'ensemble', 'paused')
  local owner, mine = tonumber(stored[1] or 0), tonumber(epoch)
  if owner > 0 and mine > 0 and stored[2] and stored[2] ~= ensemble then
    return redis.error_reply('RMQ_ENSEMBLE ' .. stored[2]), false, false
  end
  if mine < owner then
    return redis.error_reply('RMQ_FENCED ' .. stored[1]), false, false
  end
  return false, mine > owner, stored[3] == '1'
end
