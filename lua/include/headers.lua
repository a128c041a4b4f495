-- A header is the text "run settledSeq lastSeq lastOrdinal seenMs mark server" under the consumer's
-- name. mark and server belong to the batch that was planned last (plan.lua), '-' before the first.
-- Fields that begin with @ belong to the slot itself. @paused says until when the slot makes no new claim,
-- in ms, or inf while the topic is paused (pause.lua).
-- Defines: NO_PLAN, PAUSED, until_of, is_consumer, read_header, is_deserted, write_header, superseded
local NO_PLAN, PAUSED = '-', '@paused'

local function until_of(mark) return mark == 'inf' and math.huge or tonumber(mark or 0) end

local function is_consumer(field) return string.sub(field, 1, 1) ~= '@' end

local function read_header(consumers, consumer)
  local found = redis.call('HMGET', consumers, consumer, PAUSED)
  local run, settled, last_seq, last_ordinal, seen, mark, server =
    string.match(found[1] or '0 0 0 0 0', '^(%d+) (%d+) (%d+) (%d+) (%d+) ?(%S*) ?(%S*)$')
  return {consumer = consumer, run = tonumber(run), settled = tonumber(settled),
    last_seq = tonumber(last_seq), last_ordinal = tonumber(last_ordinal), seen = tonumber(seen),
    mark = mark ~= '' and mark or NO_PLAN, server = server ~= '' and server or NO_PLAN,
    paused_until = until_of(found[2]), is_new = not found[1]}
end

-- Returns whether a consumer without a header has come to a slot without any of some keys: nothing has ever been there,
-- or the topic was deleted. A key that a call left behind there would stay for good.
local function is_deserted(header, ...) return header.is_new and redis.call('EXISTS', ...) == 0 end

local function write_header(consumers, header)
  redis.call('HSET', consumers, header.consumer, string.format('%.0f %.0f %.0f %.0f %.0f %s %s',
    header.run, header.settled, header.last_seq, header.last_ordinal, header.seen, header.mark,
    header.server))
end

-- Returns the error reply for a caller whose run is older than the header's, or nil.
local function superseded(header, run)
  if run < header.run then
    return redis.error_reply(string.format(
      'RMQ_FENCED run %.0f of consumer %s was superseded by run %.0f',
      run, header.consumer, header.run))
  end
end
