-- The bodies (bodies.lua) of the messages of a claim, in a hash of their own. Its fields b0, b1, ... hold
-- the bodies of 1024 messages each, c0, c1, ... their contents, in the order in which they are delivered: the
-- lengths, separated by commas; a line feed; and the texts. Rollbacks leave the hash as it is, until the
-- claim is empty. A claim without any body has no hash.
-- Defines: A_PART, write_part, read_bodies
local A_PART = 1024

local function packed(texts)
  local lengths = {}
  for i = 1, #texts do lengths[i] = #texts[i] end
  return table.concat(lengths, ',') .. '\n' .. table.concat(texts)
end

local function unpacked(part)
  local texts, lengths_end = {}, string.find(part, '\n', 1, true)
  local at = lengths_end + 1
  for length in string.gmatch(string.sub(part, 1, lengths_end - 1), '%d+') do
    texts[#texts + 1] = string.sub(part, at, at + length - 1)
    at = at + length
  end
  return texts
end

-- Writes the bodies of a part. number: from 0 on.
local function write_part(of_claim, number, contents, bodies)
  redis.call('HSET', of_claim, 'b' .. number, packed(bodies), 'c' .. number, packed(contents))
end

-- Returns the bodies by content, of those that are wanted (a set), or of all; nil for a claim without any.
local function read_bodies(of_claim, wanted)
  if redis.call('EXISTS', of_claim) == 0 then return nil end
  local by_content, number = {}, 0
  local contents = redis.call('HGET', of_claim, 'c0')
  while contents do
    local bodies = nil
    for i, content in ipairs(unpacked(contents)) do
      if not wanted or wanted[content] then
        bodies = bodies or unpacked(redis.call('HGET', of_claim, 'b' .. number))
        by_content[content] = bodies[i]
      end
    end
    number = number + 1
    contents = redis.call('HGET', of_claim, 'c' .. number)
  end
  return by_content
end
