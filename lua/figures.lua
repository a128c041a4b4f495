-- Counts the messages in the queues of some slots, for people and progress reports.
-- KEYS: for each slot 1 store, 2 retry, 3 dead, 4 claims, 5 stats, 6 consumers; in a cluster, of one slot alone
-- ARGV: 1 descending 0/1, 2 whether scores are due times 0/1
-- Returns {now in ms, stored, of these due, since when in ms or '', claimed, of these expired,
--   earliest deadline in ms or '', waiting for a retry, of these due, earliest retry in ms or '',
--   dead, earliest death in ms or '', counters as {name, number, ...}, consumers as {name, the slots that
--   know it, the slots where its claims took messages, when it was seen in ms, ...}, the slots that were
--   counted, until when in ms one of them was or is held, or 0, how many messages wait in the fullest one}, of these
--   slots together. The caller goes on with the others.
-- Errors: RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: 1000 records and consumers, and those of one slot more; a slot without a key costs one command.
-- Effect: reads
local descending, has_due_times = ARGV[1] == '1', ARGV[2] == '1'
local KEYS_A_SLOT = 6
local ENOUGH = 1000

--- include headers
--- include numbers
--- include records
--- include retry_queue
--- include time
--- include types

-- Returns an error reply if a key of a slot has another type, or nil.
local function wrong_of(store, retry, dead, claims, stats, consumers)
  return wrong_type(store, 'zset', retry, 'zset', dead, 'zset', claims, 'hash', stats, 'hash',
    consumers, 'hash')
end

local now = now_ms()
local until_now = descending and '+inf' or text_of(now)
local sizes = {stored = 0, due = 0, held = 0, expired = 0, retry = 0, retry_due = 0, dead = 0}
local earliest, counters, seen = {}, {}, {}
local slots, read, held_until, fullest = 0, 0, 0, 0

local function add(name, number) sizes[name] = sizes[name] + number end

-- Notes a time, unless it is nil or an earlier one is there.
local function note(name, time)
  if time then earliest[name] = math.min(time, earliest[name] or time) end
end

local function text_of_earliest(name) return earliest[name] and text_of(earliest[name]) or '' end

-- Returns the lowest score of a sorted set within bounds, or nil.
local function lowest(key, low, high)
  return tonumber(redis.call('ZRANGEBYSCORE', key, low, high, 'WITHSCORES', 'LIMIT', 0, 1)[2])
end

local function add_stats(stats)
  local fields = redis.call('HGETALL', stats)
  for i = 1, #fields, 2 do
    counters[fields[i]] = (counters[fields[i]] or 0) + fields[i + 1]
  end
end

-- Returns the consumers whose claims took messages, as a set.
local function add_claims(records)
  local holders = {}
  for _, record in ipairs(records) do
    if record.sealed > 0 then holders[record.consumer] = true end
    if record.held > 0 then
      add('held', record.held)
      note('deadline', record.deadline)
      if record.deadline <= now then add('expired', record.held) end
    end
  end
  return holders
end

local function add_consumers(consumers, holders)
  local fields = redis.call('HGETALL', consumers)
  read = read + #fields / 2
  for i = 1, #fields, 2 do
    local name = fields[i]
    if is_consumer(name) then
      local known = seen[name] or {slots = 0, holds = 0, at = 0}
      known.slots = known.slots + 1
      known.holds = known.holds + (holders[name] and 1 or 0)
      known.at = math.max(known.at, string.match(fields[i + 1], '^%d+ %d+ %d+ %d+ (%d+)'))
      seen[name] = known
    elseif name == PAUSED and until_of(fields[i + 1]) < math.huge then
      held_until = math.max(held_until, until_of(fields[i + 1]))
    end
  end
end

-- Returns an error reply, or nil. The types must be right.
local function add_slot(store, retry, dead, claims, stats, consumers)
  local records, version = read_records(claims)
  if not records then return version end
  read = read + #records
  add_stats(stats)
  add_consumers(consumers, add_claims(records))
  local stored, retries = redis.call('ZCARD', store), redis.call('ZCARD', retry)
  fullest = math.max(fullest, stored + retries)
  add('stored', stored)
  add('due', redis.call('ZCOUNT', store, '-inf', until_now))
  local first_due = has_due_times and lowest(store, '(16', text_of(now))
  if first_due then -- include/due_since; a clock may have been set back
    local since = redis.call('HGET', stats, 'dueSince') or 0
    note('due', math.min(now, math.max(first_due, since)))
  end
  add('retry', retries)
  add('retry_due', redis.call('ZCOUNT', retry, '-inf', waits_over(now)))
  local first_retry = lowest(retry, '-inf', '+inf')
  note('retry', first_retry and math.floor(first_retry / 1000) * 1000)
  add('dead', redis.call('ZCARD', dead))
  note('dead', lowest(dead, '-inf', '+inf'))
end

for k = 1, #KEYS, KEYS_A_SLOT do
  local keys = {KEYS[k], KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4], KEYS[k + 5]}
  if redis.call('EXISTS', unpack(keys)) > 0 then
    local wrong = wrong_of(unpack(keys)) or add_slot(unpack(keys))
    if wrong then return wrong end
  end
  slots = slots + 1
  if read >= ENOUGH then break end
end

local counted, consumers = {}, {}
for name, number in pairs(counters) do
  counted[#counted + 1] = name
  counted[#counted + 1] = number
end
for name, known in pairs(seen) do
  for _, each in ipairs({name, known.slots, known.holds, known.at}) do
    consumers[#consumers + 1] = each
  end
end
return {now, sizes.stored, sizes.due, text_of_earliest('due'),
  sizes.held, sizes.expired, text_of_earliest('deadline'),
  sizes.retry, sizes.retry_due, text_of_earliest('retry'),
  sizes.dead, text_of_earliest('dead'), counted, consumers, slots, held_until, fullest}
