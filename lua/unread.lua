-- Marks the claims of a run and batch in one slot as not delivered: they could be read, but not
-- handed out (such as a content that is not UTF-8, read as STRING). Their next delivery, or giving
-- them back, costs no retry.
-- KEYS: 1 claims, 2 consumers
-- ARGV: 1 consumer, 2 run, 3 seq
-- Returns the number of marked claims.
-- Errors: RMQ_FENCED, RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: the records of the slot.
-- Effect: moves
local claims, consumers = KEYS[1], KEYS[2]
local consumer, run, seq = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local UNDELIVERED = 0

--- include enter
--- include full_server
--- include records
--- include types

local refused, _, records =
  enter(wrong_type(claims, 'hash', consumers, 'hash'), claims, consumers, consumer, run)
if refused then return refused end

write_though_full(claims)
local marked = 0
for _, record in ipairs(records) do
  if record.consumer == consumer and record.seq == seq and record.run == run then
    record.run = UNDELIVERED
    write_record(claims, record)
    marked = marked + 1
  end
end
return marked
