-- Gives back messages that an earlier version of rmq-spark has claimed in one slot, with the scores that
-- they had in the store, as if nobody had got them. That version kept the messages of all claims in one
-- sorted set, and their first scores in a hash.
-- KEYS: 1 store, 2 claims, 3 stats, 4 that sorted set, 5 that hash
-- ARGV: none.
-- Returns {messages given back, 1 if another call would give back more, else 0}.
-- Errors: RMQ_WRONGTYPE
-- Bound: 2048 messages; the records of the slot.
-- Effect: moves
local store, claims, stats, prepare, first = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local MESSAGES_AT_MOST, MOST_RETRIES, RANKS = 2048, 16, 2048

--- include counters
--- include types
--- include wake
--- include zadd

local wrong = wrong_type(store, 'zset', claims, 'hash', stats, 'hash', prepare, 'zset', first, 'hash')
if wrong then return wrong end

-- The stamp of a claim is the second field of its record. A message's score was
-- stamp * 1000 + retries left + rank / 2048, and the hash had the first scores of a claim by rank.
local old, scores_of, flat = {}, {}, redis.call('HGETALL', claims)
for i = 1, #flat, 2 do
  local stamp = string.match(flat[i + 1], '^[12] (%d+) ')
  if stamp then
    old[#old + 1] = flat[i]
    local scores = {}
    for score in string.gmatch(redis.call('HGET', first, flat[i]) or '', '%S+') do
      scores[#scores + 1] = score
    end
    scores_of[tonumber(stamp)] = scores
  end
end

local function first_score(score)
  local whole = math.floor(score)
  local scores = scores_of[math.floor(whole / 1000)] or {}
  return scores[(score - whole) * RANKS + 1] or math.min(MOST_RETRIES, whole % 1000 + 1)
end

local items = redis.call('ZRANGE', prepare, 0, MESSAGES_AT_MOST - 1, 'WITHSCORES')
redis.call('ZREMRANGEBYRANK', prepare, 0, MESSAGES_AT_MOST - 1)
local scored, n = {}, #items / 2
for i = 1, #items, 2 do
  scored[i], scored[i + 1] = first_score(tonumber(items[i + 1])), items[i]
end
count(stats, 'merged', n - zadd(store, 'NX', scored))
count(stats, 'rolledBack', n)
wake(store, 0)
if redis.call('EXISTS', prepare) == 1 then return {n, 1} end
for _, name in ipairs(old) do redis.call('HDEL', claims, name) end
redis.call('UNLINK', first)
return {n, 0}
