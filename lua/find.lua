-- Reads where a message of one slot is: in any queue, also in several. Takes nothing.
-- KEYS: 1 store, 2 retry, 3 dead, 4 deaths, 5 bodies, 6 claims, 7.. claims of the slot, then the bodies of each
-- ARGV: 1 content, 2.. names of the claims
-- Returns {queue, score, death or body ('' for none), name of the claim and its record ('' for both in other
--   queues), ...}; or {-1, names of all claims of the slot} if KEYS lacks one: then nothing was read.
-- Errors: RMQ_WRONGTYPE, RMQ_VERSION
-- Bound: the copies of a message, and of each claim that holds one a part of its bodies (claim_bodies.lua).
-- Effect: reads
local store, retry, dead, deaths, bodies, claims = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local CLAIM_KEYS, CLAIM_NAMES = 7, 2
local content, how_many = ARGV[1], #ARGV - CLAIM_NAMES + 1

--- include bodies
--- include claim_bodies
--- include records
--- include types

local wrong = wrong_type(store, 'zset', retry, 'zset', dead, 'zset', deaths, 'hash', bodies, 'hash', claims, 'hash')
for k = 0, how_many - 1 do
  wrong = wrong or wrong_type(KEYS[CLAIM_KEYS + k], 'zset', KEYS[CLAIM_KEYS + how_many + k], 'hash')
end
if wrong then return wrong end

local named = {}
for k = 0, how_many - 1 do named[ARGV[CLAIM_NAMES + k]] = k end
local records, by_name = read_records(claims)
if not records then return by_name end -- an error
for _, record in ipairs(records) do
  if not named[record.name] then
    local names = redis.call('HKEYS', claims)
    table.insert(names, 1, -1) -- unpack would take only 7999
    return names
  end
end

local found = {}
local function add(queue, score, belonging, name, record)
  for _, value in ipairs({queue, score, without_mark(belonging or ''), name or '', record or ''}) do
    found[#found + 1] = value
  end
end

local function look_into(queue, key, belongings)
  local score = redis.call('ZMSCORE', key, content)[1]
  if score then add(queue, score, redis.call('HGET', belongings, content)) end
end

look_into('store', store, bodies)
look_into('retry', retry, bodies)
look_into('dead', dead, deaths)
for name, k in pairs(named) do
  local claim = KEYS[CLAIM_KEYS + k]
  local score = by_name[name] and redis.call('ZMSCORE', claim, content)[1]
  if score then
    local body_at = bodies_by_rank(KEYS[CLAIM_KEYS + how_many + k], redis.call('ZCARD', claim))
    add('prepare', score, body_at and body_at(redis.call('ZRANK', claim, content)), name,
      redis.call('HGET', claims, name))
  end
end
return found
