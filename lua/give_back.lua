-- Gives back every message that a consumer holds in one slot, as if its leases had run out, and bars
-- older runs from the slot. For a consumer in plain Python: when it starts, before it takes its next
-- batch and when it ends. Nothing of a query's batch is given back like this: it must be replayed.
-- KEYS: 1 store, 2 prepare, 3 retry, 4 dead, 5 claims, 6 first, 7 consumers, 8 stats
-- ARGV: 1 consumer, 2 run, 3 seq: its last batch, of which a claim that comes late is refused,
--       4 maxRetries, 5 backoff: ms, by commas
-- Returns {messages given back, 1 if another call would do more, else 0}.
-- Errors: RMQ_SUPERSEDED, RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: 4096 messages; the records of the slot.
-- Effect: moves
local store, prepare, retry, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local claims, first, consumers, stats = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local consumer, run, seq = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local max_retries, backoff = tonumber(ARGV[4]), {}
for wait in string.gmatch(ARGV[5], '%d+') do backoff[#backoff + 1] = tonumber(wait) end
local MESSAGES_AT_MOST = 4096

--- include time
--- include types
--- include records
--- include headers
--- include giveback

local wrong = wrong_type(store, 'zset', prepare, 'zset', retry, 'zset', dead, 'zset',
  claims, 'hash', first, 'hash', consumers, 'hash', stats, 'hash')
if wrong then return wrong end
local records, version = read_records(claims)
if not records then return version end
local header = read_header(consumers, consumer)
local refused = superseded(header, run)
if refused then return refused end

redis.call('HDEL', claims, '') -- frees nothing, but lets a full Redis 6.2 run the rest
local now, given_back, more = now_ms(), 0, 0
for _, record in ipairs(records) do
  if record.consumer == consumer then
    if held_messages(prepare, record) == 0 then
      redis.call('HDEL', claims, record.field)
      redis.call('HDEL', first, record.field)
    elseif given_back + record.count <= MESSAGES_AT_MOST then
      given_back = given_back + give_back_claim(record, now)
    else
      more = 1
    end
  end
end
header.run, header.seen = run, now
-- The consumer is at work here no more.
if more == 0 then header.settled = math.max(header.settled, header.last_seq, seq) end
write_header(consumers, header)
return {given_back, more}
