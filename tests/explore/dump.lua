-- Returns all that a slot holds: of each queue and claim contents and scores, of each hash fields and
-- values; and the time.
-- KEYS: the slot's three queues, the part of a claim, the slot's four hashes, the claims
local FIRST_HASH, LAST_HASH = 5, 8
local all = {}
for k = 1, #KEYS do
  if k < FIRST_HASH or k > LAST_HASH then
    all[k] = redis.call('ZRANGE', KEYS[k], 0, -1, 'WITHSCORES')
  else
    all[k] = redis.call('HGETALL', KEYS[k])
  end
end
all[#KEYS + 1] = redis.call('TIME')
return all
