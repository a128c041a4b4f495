-- Gives back the messages of one claim whose lease has expired, and deletes its record. If its consumer
-- gave it up, each message counts as rolled back. Otherwise, they are suspect (include/returning.lua). Without
-- a record, which somebody has deleted by hand, nobody can commit the messages: they go back to the store
-- as if nobody had got them.
-- If the messages are large, a call gives back a part. It takes the claim away from its consumer, for whom it is gone
-- from then on: what is left of it gets another name, under which others go on.
-- KEYS: 1 store, 2 retry, 3 dead, 4 deaths, 5 claims, 6 consumers, 7 stats, 8 bodies, 9 the claim,
--       10 its bodies, 11 what is left of the claim, 12 its bodies
-- ARGV: 1 the claim's name, 2 maxRetries, 3 backoff: waits in ms, separated by commas, 4 the name of what is left
-- Returns {the number of messages; the name of the claim to give back next, '' for none}; {0, ''} if the claim is gone,
--   its lease was renewed, or it is empty. An empty claim is remembered: who lists the expired ones may have seen it
--   before its last rollback.
-- Errors: RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: 8192 messages; a MiB of contents and bodies, and up to 16 messages more if these are larger (bytes.lua).
-- Effect: moves
local claim, of_claim, rest, of_rest = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local name, rest_name = ARGV[1], ARGV[4]
local UNDELIVERED, REST = 0, '^~' -- the latter: rmq_spark/protocol/names.py

--- include bytes
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
local wrong = wrong_slot_type(slot) or wrong_type(claim, 'zset', of_claim, 'hash', rest, 'zset', of_rest, 'hash')
if wrong then return wrong end
local record, version = read_record(slot.claims, name)
if version then return version end
local now, held = now_ms(), redis.call('ZCARD', claim)
local is_stray, is_rest = not record, name == rest_name
local function has_rest() return not is_rest and redis.call('EXISTS', rest) == 1 end
if is_stray and held == 0 then return {0, has_rest() and rest_name or ''} end -- a reply may have been lost
record = record or {run = UNDELIVERED, deadline = 0, charged = 0, max_retries = terms.max_retries}
if record.deadline > now or record.held == 0 then return {0, ''} end

local body_at = bodies_by_rank(of_claim, held)
local items, contents, bodies = {}, {}, body_at and {}
local noted = redis.call('HMGET', slot.stats, 'largest', 'accepted')
local read = in_steps(held, BYTES_A_CALL, function(done, how_many)
  local found, bytes = redis.call('ZRANGE', claim, done, done + how_many - 1, 'WITHSCORES'), 0
  for i = 1, #found, 2 do
    local content, at = found[i], #contents
    items[2 * at + 1], items[2 * at + 2], contents[at + 1] = content, found[i + 1], content
    local body = body_at and body_at(at) or ''
    if body_at then bodies[content] = body end
    bytes = bytes + #content + #body
  end
  return how_many, bytes
end, not body_at and largest_of(noted[1], noted[2]) or nil)

local is_cut = read < held
-- The rest of an earlier claim of this name, whose consumer was forgotten meanwhile.
if is_cut and has_rest() then return {0, rest_name} end
write_though_full(slot.claims)
-- What counts for suspects is the size that the claim had before anything of it was given back.
record.sealed = is_rest and record.sealed or held
if is_cut then
  if body_at then take_out_bodies(claim, of_claim, contents) end
  redis.call('ZREMRANGEBYRANK', claim, 0, read - 1)
else
  redis.call('UNLINK', claim, of_claim)
end
if not is_cut or not is_rest then redis.call('HDEL', slot.claims, name) end
if is_cut and not is_stray then
  if not is_rest then
    redis.call('RENAME', claim, rest)
    if body_at then redis.call('RENAME', of_claim, of_rest) end
  end
  record.name, record.held = rest_name, held - read
  write_record(slot.claims, record)
end
if record.run == UNDELIVERED then
  return_uncharged(slot, record, items, bodies)
else
  record.consumer = string.gsub(record.consumer, REST, '')
  local reason = record.deadline <= LOST and GIVEN_BACK or LEASE_RAN_OUT
  local return_all = record.deadline == LONG_PAST and return_messages or return_lost
  return_all(slot, terms, record, items, bodies, now, function() return reason end)
end
return {read, is_cut and (is_stray and name or rest_name) or ''}
