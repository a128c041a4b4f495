-- The keys of one slot, for scripts that take all of them.
-- Defines: slot_of, wrong_slot_type
--- include types

local function slot_of(keys)
  return {store = keys[1], prepare = keys[2], retry = keys[3], dead = keys[4],
    claims = keys[5], first = keys[6], consumers = keys[7], stats = keys[8]}
end

local function wrong_slot_type(slot)
  return wrong_type(slot.store, 'zset', slot.prepare, 'zset', slot.retry, 'zset', slot.dead, 'zset',
    slot.claims, 'hash', slot.first, 'hash', slot.consumers, 'hash', slot.stats, 'hash')
end
