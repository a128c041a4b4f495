-- What an exactly-once sink keeps of its last batch.
-- Defines: sealed_batch

-- The number of the batch that was sealed last, or -1.
local function sealed_batch(sink) return tonumber(redis.call('HGET', sink, 'batch') or -1) end
