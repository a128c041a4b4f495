-- Returns all that a slot holds: of each queue and claim contents and scores, of each hash fields and
-- values; and the time.
-- KEYS: the slot's three queues, the part of a claim, the slot's four hashes, the claims; and of a keyed
--       topic, the hash of bodies and those of the claims' bodies
-- ARGV: 1 how many of the keys stand before the bodies
local FIRST_HASH, LAST_HASH = 5, 8
local all = {}
for k = 1, #KEYS do
  if k >= FIRST_HASH and k <= LAST_HASH or k > tonumber(ARGV[1]) then
    all[k] = redis.call('HGETALL', KEYS[k])
  else
    all[k] = redis.call('ZRANGE', KEYS[k], 0, -1, 'WITHSCORES')
  end
end
all[#KEYS + 1] = redis.call('TIME')
return all
