-- Begins a new run of a consumer. Its number is the time in ms, or one more than the highest known
-- run if that is more. So a Redis that has lost a run does not give its number to another one.
-- KEYS: 1 consumer:<id>
-- ARGV: 1 the topics that it reads, as text, 2 the highest run in any slot's header, 3 the topics
--       that it read before, 4 the batch that this run replays, or '', 5 forget the consumer if it
--       starts no other run for this long, in ms; 0: never
-- Returns the number of the run.
-- Errors: RMQ_OTHERTOPIC, RMQ_WRONGTYPE
-- Bound: constant.
-- Effect: moves
local key, topic, known_run, earlier = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local forget_ms = tonumber(ARGV[5])

--- include full_server
--- include numbers
--- include time
--- include types

local wrong = wrong_type(key, 'hash')
if wrong then return wrong end
local of = redis.call('HGET', key, 'topic')
if of and of ~= topic and of ~= earlier then
  return redis.error_reply('RMQ_OTHERTOPIC the consumer reads the topic ' .. of .. ', not ' .. topic)
end
local last = math.max(known_run, tonumber(redis.call('HGET', key, 'run') or 0))
local run = math.max(last + 1, now_ms())
write_though_full(key)
redis.call('HSET', key, 'run', text_of(run), 'topic', topic)
if ARGV[4] ~= '' then redis.call('HSET', key, 'replayed', ARGV[4] .. ' ' .. text_of(run)) end
if forget_ms > 0 then redis.call('PEXPIRE', key, forget_ms) end
return run
