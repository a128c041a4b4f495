-- What renew.lua and release.lua share; they declare claims, consumers, consumer, run,
-- lease_ms and since.
local LONG_PAST = 1 -- a released claim stays released when the server's clock steps back

local function set_deadlines()
  local wrong = wrong_type(claims, 'hash', consumers, 'hash')
  if wrong then return wrong end
  local records, version = read_records(claims)
  if not records then return version end
  local header = read_header(consumers, consumer)
  local refused = superseded(header, run)
  if refused then return refused end
  redis.call('HDEL', claims, '') -- frees nothing, but lets a full Redis 6.2 run the rest
  local now, renewed = now_ms(), 0
  for _, record in ipairs(records) do
    if record.consumer == consumer and record.seq > since then
      record.deadline = lease_ms > 0 and now + lease_ms or LONG_PAST
      write_record(claims, record)
      renewed = renewed + 1
    end
  end
  if renewed > 0 then
    header.run, header.seen = run, now
    write_header(consumers, header)
  end
  return renewed
end
