-- Checks whether any message is due in these stores, for a reader that waits for messages.
-- KEYS: any number of stores (in a cluster, of one slot)
-- ARGV: 1 descending 0/1
-- Returns 1 or 0.
-- Errors: RMQ_WRONGTYPE
-- Bound: the number of keys.
-- Effect: reads
local descending = ARGV[1] == '1'

--- include numbers
--- include time
--- include types

local until_ms = descending and '+inf' or text_of(now_ms())
for _, store in ipairs(KEYS) do
  local due = redis.pcall('ZCOUNT', store, '-inf', until_ms) -- a TYPE for each would take as long
  if type(due) ~= 'number' then return wrong_type(store, 'zset') or due end
  if due > 0 then return 1 end
end
return 0
