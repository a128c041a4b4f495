-- Puts a slot back to what the explorer knows of it.
-- KEYS: the slot's four queues, then its four hashes
-- ARGV: for each key 1 how many values, and the values as ZADD or HSET takes them
local QUEUES = 4
local at = 1
for k = 1, #KEYS do
  local how_many = tonumber(ARGV[at])
  redis.call('DEL', KEYS[k])
  if how_many > 0 then
    redis.call(k <= QUEUES and 'ZADD' or 'HSET', KEYS[k], unpack(ARGV, at + 1, at + how_many))
  end
  at = at + 1 + how_many
end
