-- Gives back the messages of one claim whose lease has expired, as if each were rolled back, and
-- deletes its record. Without a record, which somebody has deleted by hand, nobody can commit the
-- messages: they go back to the store as if nobody had got them.
-- KEYS: 1 store, 2 retry, 3 dead, 4 deaths, 5 claims, 6 consumers, 7 stats, 8 bodies, 9 the claim,
--       10 its bodies
-- ARGV: 1 the claim's name, 2 maxRetries, 3 backoff: waits in ms, separated by commas
-- Returns the number of messages; 0 if the claim is gone, its lease was renewed, or it is empty. An
--   empty claim is remembered: who lists the expired ones may have seen it before its last rollback.
-- Errors: RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: 8192 messages.
-- Effect: moves
local claim, of_claim, name = KEYS[9], KEYS[10], ARGV[1]
local UNDELIVERED = 0

--- include claim_bodies
--- include dead
--- include full_server
--- include records
--- include retry_queue
--- include returning
--- include slot
--- include time
--- include types

local slot, terms = slot_of(KEYS), retry_terms(ARGV[2], ARGV[3])
local wrong = wrong_slot_type(slot) or wrong_type(claim, 'zset', of_claim, 'hash')
if wrong then return wrong end
local record, version = read_record(slot.claims, name)
if version then return version end
local now = now_ms()
record = record or {run = UNDELIVERED, deadline = 0, charged = 0, max_retries = terms.max_retries}
if record.deadline > now or record.held == 0 then return 0 end

write_though_full(slot.claims)
local items = redis.call('ZRANGE', claim, 0, -1, 'WITHSCORES')
local body_at = bodies_by_rank(of_claim, #items / 2)
local bodies = body_at and {}
for i = 1, bodies and #items or 0, 2 do bodies[items[i]] = body_at((i - 1) / 2) end
redis.call('UNLINK', claim, of_claim)
redis.call('HDEL', slot.claims, name)
if record.run == UNDELIVERED then
  return_undelivered(slot, record, items, bodies)
else
  local reason = record.deadline == LONG_PAST and GIVEN_BACK or LEASE_RAN_OUT
  return_messages(slot, terms, record, items, bodies, now, function() return reason end)
end
return #items / 2
