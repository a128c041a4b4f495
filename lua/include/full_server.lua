-- A full Redis 6.2 runs a script only if the command of its first write frees memory.
-- Defines: write_though_full

-- Comes before the first write of a script that frees nothing, or frees it later. Takes a hash.
local function write_though_full(hash) redis.call('HDEL', hash, '') end
