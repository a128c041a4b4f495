-- What renew.lua and release.lua share; they declare claims, consumers, consumer, run and lease_ms.
local function set_deadlines()
  local wrong = wrong_type(claims, 'hash', consumers, 'hash')
  if wrong then return wrong end
  local records, version = read_records(claims)
  if not records then return version end
  local header = read_header(consumers, consumer)
  if header.run ~= run then
    return redis.error_reply(string.format('RMQ_SUPERSEDED run %.0f of consumer %s is not the run '
      .. '%.0f that the slot knows', run, consumer, header.run))
  end
  redis.call('HDEL', claims, '') -- frees nothing, but lets a full Redis 6.2 run the rest
  local now, renewed = now_ms(), 0
  for _, record in ipairs(records) do
    if record.consumer == consumer then
      record.deadline = now + lease_ms
      write_record(claims, record)
      renewed = renewed + 1
    end
  end
  header.seen = now
  write_header(consumers, header)
  return renewed
end
