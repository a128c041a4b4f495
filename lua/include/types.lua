-- Checks the types of keys. A script that fails half-way keeps its writes, so it must find a key of
-- another type before its first write.
-- Defines: wrong_type

-- Takes pairs of key and type. Returns an error reply, or nil.
local function wrong_type(...)
  local wanted = {...}
  for i = 1, #wanted, 2 do
    local found = redis.call('TYPE', wanted[i]).ok
    if found ~= wanted[i + 1] and found ~= 'none' then
      return redis.error_reply('RMQ_WRONGTYPE the key ' .. wanted[i] .. ' holds a ' .. found
        .. ' where the queue keeps a ' .. wanted[i + 1])
    end
  end
end
