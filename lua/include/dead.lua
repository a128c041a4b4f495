-- The dead queue of a slot (slot.lua), and what it keeps of each message.
-- Defines: GIVEN_BACK, LEASE_RAN_OUT, EXPIRED, bury, body_of_death
--- include counters
--- include zadd
local GIVEN_BACK, LEASE_RAN_OUT, EXPIRED = 'given back', 'lease ran out', 'expired'
local COUNTERS_A_SLOT = 32

-- Returns what a reason is counted under: the class of an exception, which stands before its text.
local function class_of(reason)
  if reason == '' then return 'none' end
  if reason == GIVEN_BACK or reason == LEASE_RAN_OUT or reason == EXPIRED then return reason end
  local class = string.match(reason, '^([%a_][%w_.]*)$') or string.match(reason, '^([%a_][%w_.]*):')
  return class and string.sub(class, 1, 64) or 'other'
end

-- Puts messages (time, content, time, content, ...) into the dead queue, and notes for each how it died: the
-- consumer, the length of the reason, the reason, and behind it the body, if the message has one. reason_of:
-- returns the reason, by content. bodies: by content, or nil.
local function bury(slot, consumer, reason_of, bodies, buried)
  if #buried == 0 then return end
  local classes = {}
  for i = 1, #buried, 2 * UNPACKABLE do
    local deaths = {}
    for k = i + 1, math.min(i + 2 * UNPACKABLE - 1, #buried), 2 do
      local reason = reason_of(buried[k])
      local class = class_of(reason)
      classes[class] = (classes[class] or 0) + 1
      deaths[#deaths + 1], deaths[#deaths + 2] = buried[k], string.format('%s %d ', consumer, #reason)
        .. reason .. (bodies and bodies[buried[k]] or '')
    end
    redis.call('HSET', slot.deaths, unpack(deaths))
  end
  zadd(slot.dead, 'GT', buried)
  count(slot.stats, 'dead', #buried / 2)
  local counters, known = redis.call('HKEYS', slot.stats), {}
  for _, counter in ipairs(counters) do known[counter] = true end
  local there = #counters
  for class, messages in pairs(classes) do
    local counter = 'dead:' .. class
    if not known[counter] then
      -- The expired ones are always counted by themselves: claims go by their number (take.lua).
      if there >= COUNTERS_A_SLOT and class ~= EXPIRED then counter = 'dead:other' end
      there = there + 1
    end
    count(slot.stats, counter, messages)
  end
end

-- Returns the body that a message had when it died; '' for none.
local function body_of_death(death)
  local head, length = string.match(death, '^(%S+ (%d+) )')
  return head and string.sub(death, #head + length + 1) or ''
end
