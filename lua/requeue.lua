-- Moves messages of one slot from the dead queue to the store, as first deliveries.
-- KEYS: 1 store, 2 retry, 3 dead, 4 deaths, 5 stats, 6 bodies
-- ARGV: 1 whether scores are times that may have passed 0/1, 2 whether they are priorities 0/1, 3 score in the store,
--       above 16, content, score, content, ... as strings of MessagePack
-- Returns {messages moved, pairs looked at: the first of those that the caller sent, the others are left to another
--   call}; contents that the dead queue does not hold are ignored.
-- Errors: RMQ_WRONGTYPE, RMQ_BADSCORE
-- Bound: what the caller sends, at most 512 pairs; a MiB, and up to 16 messages more if these are larger (bytes.lua).
-- Effect: moves
local store, retry, dead, deaths, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local bodies = KEYS[6]
local can_be_past, are_priorities, asked = ARGV[1] == '1', ARGV[2] == '1', {cmsgpack.unpack(ARGV[3])}

--- include bodies
--- include bytes
--- include counters
--- include dead
--- include due_since
--- include priorities
--- include time
--- include types
--- include wake

local wrong = wrong_type(store, 'zset', retry, 'zset', dead, 'zset', deaths, 'hash',
  stats, 'hash', bodies, 'hash')
if wrong then return wrong end

local death_of = {} -- by content
local looked_at = in_steps(#asked / 2, BYTES_A_CALL, function(done, how_many)
  local contents, bytes = {}, 0
  for k = 1, how_many do contents[k] = asked[2 * (done + k)] end
  for k, death in ipairs(redis.call('HMGET', deaths, unpack(contents))) do
    death_of[contents[k]] = death or ''
    bytes = bytes + #contents[k] + #(death or '')
  end
  return how_many, bytes
end)

-- Keeps the bodies that messages had when they died, without their expiry, and marks them as older than those
-- in claims. A copy that waits has a body of its own, or none.
local function keep_bodies(contents)
  local kept = {}
  local stored = redis.call('ZMSCORE', store, unpack(contents))
  local waiting = redis.call('ZMSCORE', retry, unpack(contents))
  for k, content in ipairs(contents) do
    local body = body_of_death(death_of[content])
    if body ~= '' and not stored[k] and not waiting[k] then
      kept[#kept + 1], kept[#kept + 2] = content, marked(without_expiry(body))
    end
  end
  set_bodies(bodies, kept)
end

local lowest = math.huge
for i = 1, #asked, 2 do
  local score = tonumber(asked[i]) -- ZADD refuses some texts that Lua reads
  if not (score and score > 16 and score <= 2 ^ 53) then
    return redis.error_reply('RMQ_BADSCORE the score ' .. asked[i] .. ' is not accepted. Accepted: whole '
      .. 'numbers above 16, where retry counts end, and at most 2^53')
  end
  lowest = math.min(lowest, score)
end
local change = can_be_past and due_since_change(store, stats, lowest, now_ms()) or 0
local found, scored = {}, {}
for i = 1, 2 * looked_at, 2 do
  if redis.call('ZREM', dead, asked[i + 1]) == 1 then
    found[#found + 1] = asked[i + 1]
    scored[#scored + 1], scored[#scored + 2] = tonumber(asked[i]), asked[i + 1]
  end
end
if #found == 0 then return {0, looked_at} end
keep_bodies(found)
redis.call('HDEL', deaths, unpack(found))
local waiting = redis.call('ZREM', retry, unpack(found))
if are_priorities then scored = in_turn(scored, stats) end
local new = redis.call('ZADD', store, 'NX', unpack(scored)) - waiting
count(stats, 'dueSince', change)
count(stats, 'accepted', #found)
count(stats, 'merged', #found - new)
wake(store, 0) -- or later, which the reader sees
return {#found, looked_at}
