-- Puts a slot back to what the explorer knows of it.
-- KEYS: as those of dump.lua
-- ARGV: 1 how many of the keys stand before the bodies, and for each key how many values, and the values
--       as ZADD or HSET takes them
local FIRST_HASH, LAST_HASH = 5, 8
local at = 2
for k = 1, #KEYS do
  local how_many = tonumber(ARGV[at])
  redis.call('DEL', KEYS[k])
  if how_many > 0 then
    local is_hash = k >= FIRST_HASH and k <= LAST_HASH or k > tonumber(ARGV[1])
    redis.call(is_hash and 'HSET' or 'ZADD', KEYS[k], unpack(ARGV, at + 1, at + how_many))
  end
  at = at + 1 + how_many
end
