-- The keys of one slot, for scripts that take all of them but the claims' own.
-- Defines: slot_of, wrong_slot_type
--- include types

local function slot_of(keys)
  return {store = keys[1], retry = keys[2], dead = keys[3], deaths = keys[4],
    claims = keys[5], consumers = keys[6], stats = keys[7], bodies = keys[8]}
end

local function wrong_slot_type(slot)
  return wrong_type(slot.store, 'zset', slot.retry, 'zset', slot.dead, 'zset',
    slot.deaths, 'hash', slot.claims, 'hash', slot.consumers, 'hash', slot.stats, 'hash',
    slot.bodies, 'hash')
end
