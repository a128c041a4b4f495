-- The bodies (bodies.lua) of the messages of a claim, in a hash of their own. Its fields 0, 1, ... are the
-- parts: the bodies in the order in which the messages are delivered. A rollback of one message rewrites its
-- part, so a part has at most 1024 bodies and 64 KiB of them, or one that is larger. A part is the number of
-- its bodies, their lengths (both as 4 bytes, big-endian), and the bodies. The field `order` is 'asc' or
-- 'desc' and behind it the numbers of bodies in the parts. A claim without any body has no hash.
-- Defines: BODIES_A_PART, BYTES_A_PART, write_part, write_order, take_out_bodies, bodies_by_rank
local BODIES_A_PART, BYTES_A_PART, ORDER = 1024, 64 * 1024, 'order'

local function lengths_format(how_many) return '>' .. string.rep('I4', how_many) end

local function packed(bodies)
  local lengths = {}
  for i = 1, #bodies do lengths[i] = #bodies[i] end
  return struct.pack(lengths_format(#bodies + 1), #bodies, unpack(lengths)) .. table.concat(bodies)
end

local function unpacked(part)
  local bodies, how_many = {}, struct.unpack('>I4', part)
  local lengths = {struct.unpack(lengths_format(how_many), part, 5)}
  local at = 5 + 4 * how_many
  for i = 1, how_many do
    bodies[i] = string.sub(part, at, at + lengths[i] - 1)
    at = at + lengths[i]
  end
  return bodies
end

-- Writes a part. number: from 0 on.
local function write_part(of_claim, number, bodies) redis.call('HSET', of_claim, number, packed(bodies)) end

-- Writes the order of delivery, and how many bodies each part has.
local function write_order(of_claim, descending, counts)
  redis.call('HSET', of_claim, ORDER, (descending and 'desc ' or 'asc ') .. table.concat(counts, ','))
end

-- Returns whether the claim is delivered in descending order, and how many bodies each part has; nil for a
-- claim without bodies.
local function read_order(of_claim)
  local order = redis.call('HGET', of_claim, ORDER)
  if not order then return nil end
  local counts = {}
  for how_many in string.gmatch(order, '%d+') do counts[#counts + 1] = tonumber(how_many) end
  return string.sub(order, 1, 4) == 'desc', counts
end

-- Takes the bodies of messages out of their parts. Call it before the messages leave the claim. Returns the
-- bodies by content; nil for a claim without any.
local function take_out_bodies(claim, of_claim, contents)
  local descending, counts = read_order(of_claim)
  if not counts then return nil end
  local ranks, content_at, by_content = {}, {}, {}
  local last = redis.call('ZCARD', claim) - 1
  for k, content in ipairs(contents) do
    local rank = redis.call('ZRANK', claim, content)
    ranks[k] = descending and last - rank or rank
    content_at[ranks[k]] = content
  end
  table.sort(ranks)
  local past, at = 0, 1
  for number, how_many in ipairs(counts) do
    local rank, kept = past, {}
    past = past + how_many
    if ranks[at] and ranks[at] < past then
      for _, body in ipairs(unpacked(redis.call('HGET', of_claim, number - 1))) do
        if ranks[at] == rank then
          by_content[content_at[rank]] = body
          at = at + 1
        else
          kept[#kept + 1] = body
        end
        rank = rank + 1
      end
      write_part(of_claim, number - 1, kept)
      counts[number] = #kept
    end
  end
  write_order(of_claim, descending, counts)
  return by_content
end

-- Returns a function that returns the body of the message at a rank (ZRANK) of the claim, quickly for ranks in
-- order; nil for a claim without any body. size: the number of messages in the claim.
local function bodies_by_rank(of_claim, size)
  local descending, counts = read_order(of_claim)
  if not counts then return nil end
  local part, first, past = {}, 0, 0
  return function(rank)
    local place = descending and size - 1 - rank or rank
    if place < first or place >= past then
      part, past = {}, 0
      for number, how_many in ipairs(counts) do
        first, past = past, past + how_many
        if place < past then
          part = unpacked(redis.call('HGET', of_claim, number - 1))
          break
        end
      end
    end
    return part[place - first + 1] or ''
  end
end
