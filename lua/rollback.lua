-- Rolls back single messages of one claim: to the store, to the retry queue if they must wait, or
-- to the dead queue if no retry is left or the caller wants it. Leaves alone what the claim and run do
-- not hold.
-- KEYS: 1 store, 2 retry, 3 dead, 4 deaths, 5 claims, 6 consumers, 7 stats, 8 bodies, 9 the claim,
--       10 its bodies
-- ARGV: 1 the claim's name, 2 run, 3 verdict: 'retry'; 'uncharged' if it costs no retry, or 'unread' if
--       nobody got the messages; or 'bury', 4 delay in ms; '' for the topic's backoff, or for none if it costs no retry, 5 maxRetries,
--       6 backoff: of retry_terms, 7 the number of contents, 8.. contents, and behind
--       them the reasons: one for all contents, or one for each
-- Returns {messages rolled back, messages left alone}.
-- Errors: RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: what the caller sends, at most 1024 contents and a MiB of them; the bodies of the claim, 8192 and 8 MiB.
-- Effect: moves
local claim, of_claim = KEYS[9], KEYS[10]
local name, run, verdict, delay_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local CONTENTS_FROM, named = 8, tonumber(ARGV[7])

--- include claim_bodies
--- include full_server
--- include records
--- include retry_queue
--- include returning
--- include slot
--- include time
--- include types

local slot, terms = slot_of(KEYS), retry_terms(ARGV[5], ARGV[6])
local wrong = wrong_slot_type(slot) or wrong_type(claim, 'zset', of_claim, 'hash')
if wrong then return wrong end
local record, version = read_record(slot.claims, name)
if version then return version end
if not record or record.run ~= run or named == 0 then return {0, named} end

local last = CONTENTS_FROM + named - 1
local items, taken, reasons = {}, {}, {}
for k, score in ipairs(redis.call('ZMSCORE', claim, unpack(ARGV, CONTENTS_FROM, last))) do
  local content = ARGV[CONTENTS_FROM + k - 1]
  if score and not taken[content] then
    taken[content] = true
    taken[#taken + 1] = content
    items[#items + 1], items[#items + 2] = content, score
    reasons[content] = ARGV[last + k] or ARGV[last + 1]
  end
end
if #taken == 0 then return {0, named} end
write_though_full(slot.claims) -- bodies that stay are written before messages leave
local bodies = take_out_bodies(claim, of_claim, taken)
redis.call('ZREM', claim, unpack(taken))
record.held = record.held - #taken
write_record(slot.claims, record)
if record.held == 0 then redis.call('UNLINK', of_claim) end
local now = now_ms()
local function reason_of(content) return reasons[content] end
if verdict == 'uncharged' then
  return_uncharged(slot, record, items, bodies, 0, now, delay_ms)
elseif verdict == 'unread' then
  return_uncharged(slot, record, items, bodies)
elseif verdict == 'bury' then
  bury_messages(slot, record, items, bodies, now, reason_of)
else
  return_messages(slot, terms, record, items, bodies, now, reason_of, delay_ms)
end
return {#taken, named - #taken}
