-- Notes an occurrence of a schedule, and sends its message to all groups, unless the note has changed since the
-- caller read it: of several programs that run the schedule, one sends the message, once.
-- KEYS: 1 schedules, for each group 2 store, 3 retry, 4 stats, 5 bodies; then, with unique_for, the recent messages
-- ARGV: 1 the schedule's name, 2 the note that was read ('' for none), 3 the new note, 4 the send script that
--       stores the message, or '' to send none, 5 whether a message that waits keeps its body 0/1, 6 the
--       topic's limits (limits.lua), 7 score, 8 content, 9 body ('' for none)
-- Returns {1, whether the message was left out as repeated 0/1}; {0, the note} if it has changed; or a refusal
--       (limits.lua), and has then noted nothing.
-- Errors: RMQ_WRONGTYPE
-- Bound: one message.
-- Effect: stores
local schedules, name, read, note = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local send_script, keep_first, limits, content, body = ARGV[4], ARGV[5] == '1', ARGV[6], ARGV[8], ARGV[9]
local GROUPS_FROM = 2

--- include groups
--- include store_as
--- include types

local wrong = wrong_type(schedules, 'hash') or wrong_group_type(KEYS, GROUPS_FROM)
if wrong then return wrong end
local found = redis.call('HGET', schedules, name) or ''
if found ~= read then return {0, found} end
local repeated = 0
if send_script ~= '' then
  local bodies = body ~= '' and {content, body} or nil
  local counts =
    store_as(send_script, KEYS, GROUPS_FROM, {ARGV[7], content}, bodies, keep_first, #content, limits)
  if counts[1] < 0 then return counts end
  repeated = counts[3]
end
redis.call('HSET', schedules, name, note)
return {1, repeated}
