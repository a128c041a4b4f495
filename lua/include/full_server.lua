-- A full Redis 6.2 runs a script only if the command of its first write frees memory.
-- Defines: write_though_full

-- Runs HDEL, a command that frees memory, on a field that does not exist. Call it before the first
-- write of a script that frees nothing, or frees memory only later.
local function write_though_full(hash) redis.call('HDEL', hash, '') end
