-- The first write of a script that settles or claims. A removal is allowed at maxmemory, and once a script has
-- written, Redis lets its later writes pass; so a full Redis can still be drained. This one removes nothing, ever.
local function begin_write(slot, newer, epoch, ensemble)
  redis.call('ZREMRANGEBYRANK', slot.store, 1, 0)
  if newer then
    redis.call('HSET', slot.meta, 'epoch', epoch, 'ensemble', ensemble)
  end
end
