-- A header is the text "run settledSeq lastSeq lastJ seenMs" under the consumer's name.
local function read_header(consumers, consumer)
  local text = redis.call('HGET', consumers, consumer) or '0 0 0 0 0'
  local run, settled, last_seq, last_j, seen = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  return {consumer = consumer, run = tonumber(run), settled = tonumber(settled),
    last_seq = tonumber(last_seq), last_j = tonumber(last_j), seen = tonumber(seen)}
end

local function write_header(consumers, header)
  redis.call('HSET', consumers, header.consumer, string.format('%.0f %.0f %.0f %.0f %.0f',
    header.run, header.settled, header.last_seq, header.last_j, header.seen))
end

-- The error reply for a caller whose run is older than the header's, or nil.
local function superseded(header, run)
  if run < header.run then
    return redis.error_reply(string.format(
      'RMQ_SUPERSEDED run %.0f of consumer %s was superseded by run %.0f',
      run, header.consumer, header.run))
  end
end
