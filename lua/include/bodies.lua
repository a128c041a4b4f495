-- The bodies of messages: what a message carries beside the content, or key, by which it merges. A body is
-- a text: a character, '0' plus 1 (it has a payload), 2 (headers), 4 (a time in ms when it expires) or 8 (a
-- time to live in ms after it is due); for 4 and 8 that time, in 16 digits; headers; payload. Scripts read
-- only the character and the time. A message that was requeued has a '~' in front of its body, until it is
-- claimed or sent again.
-- Defines: EXPIRES, LARGE_BODY, body_expiry, expiring_at, without_expiry, marked, is_marked, without_mark, due_now,
--   set_bodies, count_large
--- include counters
--- include zadd
local EXPIRES, TO_LIVE, TIME_DIGITS = string.byte('0') + 4, string.byte('0') + 8, 16
local REQUEUED = '~'
local LARGE_BODY = 8 * 1024

-- Returns when a body expires, in ms, or nil; and whether that is counted from its due time.
local function body_expiry(body)
  local kind = string.byte(body) or 0
  if kind < EXPIRES then return nil end
  return tonumber(string.sub(body, 2, TIME_DIGITS + 1)), kind >= TO_LIVE
end

-- Returns a body with a time to live, due at a time, as one that expires at a time.
local function expiring_at(body, expires)
  return string.char(string.byte(body) - TO_LIVE + EXPIRES) .. string.format('%016.0f', expires)
    .. string.sub(body, TIME_DIGITS + 2)
end

-- Returns a body that a claim has had as one that does not expire.
local function without_expiry(body)
  local kind = string.byte(body) or 0
  if kind < EXPIRES then return body end
  return string.char(kind - EXPIRES + string.byte('0')) .. string.sub(body, TIME_DIGITS + 2)
end

local function marked(body) return REQUEUED .. body end

-- body: may be false.
local function is_marked(body) return body and string.sub(body, 1, 1) == REQUEUED end

local function without_mark(body) return is_marked(body) and string.sub(body, 2) or body end

-- Gives bodies (content, body, ...) with a time to live the time when they expire, if they are due now.
local function due_now(pairs_, now)
  for i = 2, #pairs_, 2 do
    local expires, counted_from_due = body_expiry(pairs_[i])
    if counted_from_due then pairs_[i] = expiring_at(pairs_[i], now + expires) end
  end
  return pairs_
end

-- Sets the bodies (content, body, ...) of waiting messages.
local function set_bodies(bodies, pairs_)
  for i = 1, #pairs_, 2 * UNPACKABLE do
    redis.call('HSET', bodies, unpack(pairs_, i, math.min(i + 2 * UNPACKABLE - 1, #pairs_)))
  end
end

-- Counts the bodies (content, body, ...) that are so large that claims take few of them at once.
local function count_large(stats, pairs_)
  local large = 0
  for i = 2, #pairs_, 2 do
    if #pairs_[i] > LARGE_BODY then large = large + 1 end
  end
  count(stats, 'largeBodies', large)
end
