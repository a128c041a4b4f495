-- Sets new deadlines for the claims that a consumer holds in one slot.
-- Defines: set_deadlines
--- include enter
--- include full_server
--- include headers
--- include records
--- include time
--- include types

-- lease_ms: from now; 0 ends the leases. since: the batch before the first one. Returns the number
-- of claims, or an error reply.
local function set_deadlines(claims, consumers, consumer, run, lease_ms, since)
  local refused, header, records =
    enter(wrong_type(claims, 'hash', consumers, 'hash'), claims, consumers, consumer, run)
  if refused then return refused end
  write_though_full(claims)
  local now, renewed = now_ms(), 0
  for _, record in ipairs(records) do
    if record.consumer == consumer and record.seq > since then
      record.deadline = lease_ms > 0 and now + lease_ms or LOST
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
