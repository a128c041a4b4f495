-- Deletes messages for good, from one queue of one slot.
-- KEYS: 1 queue (store, retry or dead), 2 stats, 3 what belongs to its messages: deaths for the dead
--       queue, bodies for the others
-- ARGV: 1 counter of the deleted messages, or '' for none, 2.. pairs of score and content; deletes
--       a content only if it still has that score, or if the score is ''
-- Returns the number of deleted messages.
-- Errors: RMQ_WRONGTYPE
-- Bound: what the caller sends, at most 512 pairs and a MiB of contents, or one.
-- Effect: moves
local queue, stats, belongings = KEYS[1], KEYS[2], KEYS[3]
local counter = ARGV[1]

--- include types

local wrong = wrong_type(queue, 'zset', stats, 'hash') or wrong_type(belongings, 'hash')
if wrong then return wrong end
local contents, wanted = {}, {}
for i = 2, #ARGV, 2 do contents[#contents + 1] = ARGV[i + 1] end
for k, score in ipairs(redis.call('ZMSCORE', queue, unpack(contents))) do
  local asked = ARGV[2 * k]
  if score and (asked == '' or tonumber(score) == tonumber(asked)) then
    wanted[#wanted + 1] = contents[k]
  end
end
if #wanted == 0 then return 0 end
local deleted = redis.call('ZREM', queue, unpack(wanted))
redis.call('HDEL', belongings, unpack(wanted))
if counter ~= '' then redis.call('HINCRBY', stats, counter, deleted) end
return deleted
