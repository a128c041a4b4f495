-- The first checks and reads of a consumer's call in a slot.
-- Defines: enter
--- include headers
--- include records

-- wrong: the error reply of the check of the keys' types, or nil. Returns the error reply for a
-- call that must not go on, or nil; then the consumer's header, and the slot's records as a list
-- and by field.
local function enter(wrong, claims, consumers, consumer, run)
  if wrong then return wrong end
  local records, by_field = read_records(claims)
  if not records then return by_field end
  local header = read_header(consumers, consumer)
  return superseded(header, run), header, records, by_field
end
