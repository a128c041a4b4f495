-- Moves the bodies (bodies.lua) of messages that a new claim has taken out of their slot (slot.lua), and
-- leaves out messages that have expired.
-- Defines: take_bodies
--- include bodies
--- include claim_bodies
--- include counters
--- include dead
--- include records
--- include zadd
local BYTES_AT_MOST, BYTES_OF_FIRST_KIND = 8 * 1024 * 1024, 7 * 1024 * 1024
local NOBODY = '-'

-- Returns a body as the claim keeps it, and whether it has expired. score: of its message.
local function claimed_body(body, score, now)
  local expires, counted_from_due = body_expiry(body)
  if counted_from_due then
    expires = expires + (score > HIGHEST_RETRY and score or now)
    body = expiring_at(body, expires)
  end
  return body, expires ~= nil and expires <= now
end

-- Returns the contents and the scores of messages of a claim, from a rank on in delivery order.
local function messages_at(claim, rank, how_many, descending)
  local last, items = rank + how_many - 1, nil
  if descending then
    items = redis.call('ZRANGE', claim, rank, last, 'REV', 'WITHSCORES')
  else
    items = redis.call('ZRANGE', claim, rank, last, 'WITHSCORES')
  end
  local contents, scores = {}, {}
  for i = 1, #items, 2 do contents[#contents + 1], scores[#scores + 1] = items[i], items[i + 1] end
  return contents, scores
end

-- Puts messages of a claim, from a rank on, back into the store with the scores that they had.
local function put_rest_back(store, claim, rank, how_many, descending)
  for left = how_many, 1, -UNPACKABLE do
    local contents, scores = messages_at(claim, rank, math.min(left, UNPACKABLE), descending)
    local scored = {}
    for k, content in ipairs(contents) do scored[2 * k - 1], scored[2 * k] = scores[k], content end
    redis.call('ZREM', claim, unpack(contents))
    zadd(store, 'NX', scored)
  end
end

-- Moves the bodies of the `taken` messages of a claim, up to 8 MiB and the body that exceeds them; other
-- messages go back to the store. Of retries and first deliveries, the kind that is delivered first gets
-- 7 MiB if there are both, and of the other at least one message stays. expired_die: whether messages that
-- have expired go to the dead queue. Returns the numbers of messages that the claim holds now, and of those
-- that have expired.
local function take_bodies(slot, claim, of_claim, taken, now, descending, expired_die)
  redis.call('UNLINK', of_claim) -- somebody may have deleted a claim of this name, but not its bodies
  if taken == 0 or redis.call('EXISTS', slot.bodies) == 0 then return taken, 0 end
  local held, bytes, expired, parts = 0, 0, 0, 0
  local contents, bodies = {}, {}

  local function write()
    if #contents > 0 then write_part(of_claim, parts, contents, bodies) end
    parts, contents, bodies = parts + 1, {}, {}
  end

  -- Removes messages that have expired. bodies_of: by content.
  local function let_expire(gone, bodies_of)
    redis.call('ZREM', claim, unpack(gone))
    expired = expired + #gone
    if not expired_die then return count(slot.stats, 'expired', #gone) end
    local buried = {}
    for k, content in ipairs(gone) do buried[2 * k - 1], buried[2 * k] = now, content end
    bury(slot, NOBODY, function() return EXPIRED end, bodies_of, buried)
  end

  -- Moves the bodies of the first messages behind those that are held, until there are enough bytes.
  -- Returns the number of messages, expired ones included.
  local function move(how_many, enough)
    local some, scores = messages_at(claim, held, how_many, descending)
    local fitting = 0
    while fitting < #some and bytes < enough do
      fitting = fitting + 1
      bytes = bytes + redis.call('HSTRLEN', slot.bodies, some[fitting])
    end
    local found = redis.call('HMGET', slot.bodies, unpack(some, 1, fitting))
    redis.call('HDEL', slot.bodies, unpack(some, 1, fitting))
    local gone, bodies_of_gone = {}, {}
    for k = 1, fitting do
      local body, is_over = claimed_body(found[k] or '', tonumber(scores[k]), now)
      if is_over then
        gone[#gone + 1], bodies_of_gone[some[k]] = some[k], body
      else
        contents[#contents + 1], bodies[#bodies + 1] = some[k], body
        held = held + 1
        if #contents == A_PART then write() end
      end
    end
    if #gone > 0 then let_expire(gone, bodies_of_gone) end
    return fitting
  end

  -- Does so for all messages of one kind.
  local function take(left, enough)
    while left > 0 and bytes < enough do left = left - move(math.min(A_PART, left), enough) end
    put_rest_back(slot.store, claim, held, left, descending)
  end

  local retries = redis.call('ZCOUNT', claim, '-inf', HIGHEST_RETRY)
  local lead = descending and taken - retries or retries
  take(lead, lead < taken and BYTES_OF_FIRST_KIND or BYTES_AT_MOST)
  take(taken - lead, math.max(BYTES_AT_MOST, bytes + 1))
  write()
  return held, expired
end
