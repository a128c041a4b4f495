-- Begins a new run of a consumer: one more than any run known of it.
-- KEYS: 1 consumer:<id>
-- ARGV: 1 what it reads, as text, 2 the highest run in any slot's header, 3 what it read before
-- Returns the run.
-- Errors: RMQ_OTHERTOPIC, RMQ_WRONGTYPE
-- Bound: constant.
local key, topic, known_run, earlier = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]

--- include types

local wrong = wrong_type(key, 'hash')
if wrong then return wrong end
local of = redis.call('HGET', key, 'topic')
if of and of ~= topic and of ~= earlier then
  return redis.error_reply('RMQ_OTHERTOPIC the consumer reads the topic ' .. of .. ', not ' .. topic)
end
local run = 1 + math.max(known_run, tonumber(redis.call('HGET', key, 'run') or 0))
redis.call('HDEL', key, '') -- frees nothing, but lets a full Redis 6.2 run the rest
redis.call('HSET', key, 'run', string.format('%.0f', run), 'topic', topic)
return run
