-- Looks into slots for a reader that waits for messages, and may have missed a wake-up.
-- KEYS: for each slot 1 store, 2 retry, 3 claims; in a cluster, of one slot alone
-- ARGV: 1 descending 0/1
-- Returns for each slot 2 if a message is due in its store; else 1 if it has claims, or messages that wait for
--   a retry; else 0.
-- Errors: RMQ_WRONGTYPE
-- Bound: the number of keys.
-- Effect: reads
local descending = ARGV[1] == '1'
local KEYS_A_SLOT = 3

--- include numbers
--- include time
--- include types

local until_ms, found = descending and '+inf' or text_of(now_ms()), {}
for k = 1, #KEYS, KEYS_A_SLOT do
  local due = redis.pcall('ZCOUNT', KEYS[k], '-inf', until_ms) -- a TYPE for each would take as long
  if type(due) ~= 'number' then return wrong_type(KEYS[k], 'zset') or due end
  if due > 0 then
    found[#found + 1] = 2
  else
    found[#found + 1] = redis.call('EXISTS', KEYS[k + 1], KEYS[k + 2]) > 0 and 1 or 0
  end
end
return found
