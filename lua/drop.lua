-- Deletes everything that one slot of a consumer group holds.
-- KEYS: 1 store, 2 retry, 3 dead, 4 deaths, 5 claims, 6 consumers, 7 stats, 8 bodies,
--       9.. the claims, and then as many keys of their bodies
-- ARGV: 1.. the names of these claims
-- Returns {1}; or {0, names of the claims of the slot} if KEYS lacks one: then nothing was done.
-- Errors: RMQ_WRONGTYPE
-- Bound: the records of the slot; Redis frees the memory in another thread.
-- Effect: transient
local claims = KEYS[5]
local CLAIM_KEYS, KEYS_A_CALL = 9, 4096

--- include records
--- include types

local wrong = wrong_type(claims, 'hash')
if wrong then return wrong end
local named, names, all = keys_by_name(KEYS, CLAIM_KEYS, ARGV, 1), {0}, true
for _, name in ipairs(redis.call('HKEYS', claims)) do
  names[#names + 1] = name
  all = all and named[name] ~= nil
end
if not all then return names end
for i = 1, #KEYS, KEYS_A_CALL do
  redis.call('UNLINK', unpack(KEYS, i, math.min(i + KEYS_A_CALL - 1, #KEYS)))
end
return {1}
