-- The last batch of an exactly-once sink.
-- Defines: sealed_batch

-- Returns the number of the batch that was sealed last, or -1.
local function sealed_batch(sink) return tonumber(redis.call('HGET', sink, 'batch') or -1) end
