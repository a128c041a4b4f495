-- Identifies the time since the last start or failover of Redis. A master takes a new replication
-- id whenever it starts or a replica takes over, so a changed id shows that writes may be lost.
-- Defines: server_id
local NO_SERVER = '-' -- a server that shows no id

local function server_id()
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or NO_SERVER
end
