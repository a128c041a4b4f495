-- Lists the claims of one slot whose lease has expired, for give_back.lua, and forgets consumers that
-- hold nothing and were not seen for a long time. For people and jobs; a query never calls it.
-- KEYS: 1 claims, 2 consumers
-- ARGV: 1 forget consumers not seen for this long, in ms
-- Returns {1 if another call would forget more, else 0; names of claims}.
-- Errors: RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: the records of the slot; 1000 consumers.
-- Effect: moves
local claims, consumers, forget_ms = KEYS[1], KEYS[2], tonumber(ARGV[1])
local CONSUMERS_AT_MOST = 1000

--- include headers
--- include records
--- include time
--- include types

local wrong = wrong_type(claims, 'hash', consumers, 'hash')
if wrong then return wrong end
local records, version = read_records(claims)
if not records then return version end
local now, holds, reply = now_ms(), {}, {0}
for _, record in ipairs(records) do
  if record.held > 0 then
    holds[record.consumer] = true
    if record.deadline <= now then reply[#reply + 1] = record.name end -- unpack would take 7999
  end
end
local forgotten = {}
for _, consumer in ipairs(redis.call('HKEYS', consumers)) do
  if is_consumer(consumer) and not holds[consumer]
    and read_header(consumers, consumer).seen <= now - forget_ms then
    if #forgotten == CONSUMERS_AT_MOST then
      reply[1] = 1
      break
    end
    forgotten[#forgotten + 1], forgotten[consumer] = consumer, true
  end
end
for _, record in ipairs(records) do
  if forgotten[record.consumer] then redis.call('HDEL', claims, record.name) end
end
if #forgotten > 0 then redis.call('HDEL', consumers, unpack(forgotten)) end
return reply
