-- Rolls back single messages of one claim: to the store, to the retry queue if they must wait, or
-- to the dead queue if no retry is left. Leaves alone what the claim and run do not hold.
-- KEYS: 1 store, 2 prepare, 3 retry, 4 dead, 5 claims, 6 first, 7 consumers, 8 stats
-- ARGV: 1 consumer:seq:ordinal, 2 run, 3 delay in ms or '' for the topic's backoff, 4 maxRetries,
--       5 backoff: waits in ms, separated by commas, 6.. contents
-- Returns {messages rolled back, messages left alone}.
-- Errors: RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: what the caller sends, at most 2048 contents.
-- Effect: moves
local field, run, delay_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local CONTENTS_FROM = 6

--- include giveback
--- include records
--- include retry_queue
--- include slot
--- include time

local slot, terms = slot_of(KEYS), retry_terms(ARGV[4], ARGV[5])
local wrong = wrong_slot_type(slot)
if wrong then return wrong end
local records, by_field = read_records(slot.claims)
if not records then return by_field end
local record, named = by_field[field], #ARGV - CONTENTS_FROM + 1
if not record or record.run ~= run or record.stamp == 0 or named == 0 then return {0, named} end

local base, messages, taken = record.stamp * 1000, {}, {}
for k, score in ipairs(redis.call('ZMSCORE', slot.prepare, unpack(ARGV, CONTENTS_FROM))) do
  local content = ARGV[CONTENTS_FROM + k - 1]
  score = tonumber(score or -1)
  if score >= base and score < base + 1000 and not taken[content] then
    taken[content] = true
    messages[#messages + 1] = {content, math.floor(score) - base}
    taken[#taken + 1] = content
  end
end
if #taken > 0 then redis.call('ZREM', slot.prepare, unpack(taken)) end
give_back(slot, terms, messages, now_ms(), delay_ms)
return {#messages, named - #messages}
