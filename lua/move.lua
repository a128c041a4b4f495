-- Gives messages of one slot that wait, in the store or the retry queue, another due time or priority. They keep
-- their bodies and retries. In a Priority topic, those that were rolled back stay: they have had their turn.
-- KEYS: 1 store, 2 retry, 3 stats
-- ARGV: 1 whether scores are due times 0/1, 2 the score for the store, above 16, 3.. contents
-- Returns how many waited and have it now.
-- Errors: RMQ_WRONGTYPE, RMQ_BADSCORE
-- Bound: what the caller sends, at most 512 contents and a MiB of them, or one.
-- Effect: moves
local store, retry, stats = KEYS[1], KEYS[2], KEYS[3]
local are_times, wanted = ARGV[1] == '1', tonumber(ARGV[2])
local FIRST = 3

--- include counters
--- include due_since
--- include priorities
--- include records
--- include retry_queue
--- include time
--- include types
--- include wake
--- include zadd

local wrong = wrong_type(store, 'zset', retry, 'zset', stats, 'hash')
if wrong then return wrong end
if not (wanted and wanted > HIGHEST_RETRY and wanted <= 2 ^ 53) then
  return redis.error_reply('RMQ_BADSCORE the score ' .. ARGV[2] .. ' is not accepted. Accepted: whole numbers above 16, '
    .. 'where retry counts end, and at most 2^53')
end

local now = now_ms()
local first, waiting, returned, due = {}, {}, {}, 0 -- score, content, ...; and the contents that leave the store

local function add(list, score, content)
  list[#list + 1], list[#list + 2] = score, content
end

for i = FIRST, #ARGV, UNPACKABLE do
  local contents = {unpack(ARGV, i, math.min(i + UNPACKABLE - 1, #ARGV))}
  local stored = redis.call('ZMSCORE', store, unpack(contents))
  local delayed = redis.call('ZMSCORE', retry, unpack(contents))
  for k, content in ipairs(contents) do
    local score, again = tonumber(stored[k] or ''), tonumber(delayed[k] or '')
    if score and score > HIGHEST_RETRY then
      add(first, wanted, content)
    elseif score and are_times and wanted <= now then
      due = due + 1
    elseif score and are_times then
      add(waiting, retry_score(wanted, score), content)
      returned[#returned + 1] = content
    elseif again and are_times then
      add(waiting, retry_score(wanted, score_of_retry(again)), content)
    end
  end
end

local change = are_times and #first > 0 and due_since_change(store, stats, wanted, now) or 0
if not are_times then
  first = in_turn(first, stats)
  count(stats, 'moved', #first / 2)
end
zadd(store, 'XX', first)
count(stats, 'dueSince', change)
-- Before ZREM: what a full server refuses has then moved nothing.
for i = 1, #waiting, 2 * UNPACKABLE do
  redis.call('ZADD', retry, unpack(waiting, i, math.min(i + 2 * UNPACKABLE - 1, #waiting)))
end
for i = 1, #returned, UNPACKABLE do
  redis.call('ZREM', store, unpack(returned, i, math.min(i + UNPACKABLE - 1, #returned)))
end
if are_times and #first > 0 then wake_if_first(store, wanted, now) end
if #waiting > 0 then wake(store, math.max(0, wanted - now)) end
return (#first + #waiting) / 2 + due
