-- Returns all that a slot holds: of each queue contents and scores, of each hash fields and values;
-- and the time.
-- KEYS: the slot's four queues, then its four hashes
local QUEUES = 4
local all = {}
for k = 1, #KEYS do
  if k <= QUEUES then
    all[k] = redis.call('ZRANGE', KEYS[k], 0, -1, 'WITHSCORES')
  else
    all[k] = redis.call('HGETALL', KEYS[k])
  end
end
all[#KEYS + 1] = redis.call('TIME')
return all
