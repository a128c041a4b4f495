-- Wakes the readers that wait for messages of a slot. The channel has the name of the slot's store, and
-- is a sharded one from Redis 7 on. A user without the right to publish wakes nobody; readers then find
-- the messages a little later (docs/protocol.md, "Waiting for messages").
-- Defines: wake, wake_if_first
--- include numbers

-- wait_ms: how long until a message falls due; 0 if one is due.
local function wake(store, wait_ms)
  redis.pcall(redis.REDIS_VERSION_NUM and 'SPUBLISH' or 'PUBLISH', store, text_of(wait_ms))
end

-- Wakes if no message of a store whose scores are due times is due before one at `due`: else who waits
-- already waits for that. Counts instead of reading, as in due_since.lua.
local function wake_if_first(store, due, now)
  if redis.call('ZCOUNT', store, '-inf', '(' .. text_of(due)) == 0 then wake(store, math.max(0, due - now)) end
end
