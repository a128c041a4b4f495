-- Which life of which server this is. A master takes a new replication id whenever it starts and
-- whenever a replica takes over, so an id that has changed tells that writes may have been forgotten.
-- Defines: server_id
local NO_SERVER = '-' -- a server that tells no id

local function server_id()
  return string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or NO_SERVER
end
