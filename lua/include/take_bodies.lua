-- Moves the bodies (bodies.lua) of messages that a new claim has taken out of their slot (slot.lua), and
-- leaves out messages that have expired.
-- Defines: take_bodies
--- include bodies
--- include bytes
--- include claim_bodies
--- include counters
--- include dead
--- include records
--- include zadd
local BYTES_OF_FIRST_KIND = 7 * 1024 * 1024
local NOBODY = '-'

-- Returns a body as the claim keeps it, and whether it has expired. content: of its message.
local function claimed_body(claim, content, body, now)
  body = without_mark(body)
  local expires, counted_from_due = body_expiry(body)
  if counted_from_due then
    local score = tonumber(redis.call('ZMSCORE', claim, content)[1])
    expires = expires + (score > HIGHEST_RETRY and score or now)
    body = expiring_at(body, expires)
  end
  return body, expires ~= nil and expires <= now
end

-- Returns the contents of messages of a claim, from a rank on in delivery order.
local function contents_at(claim, rank, how_many, descending)
  if descending then return redis.call('ZRANGE', claim, rank, rank + how_many - 1, 'REV') end
  return redis.call('ZRANGE', claim, rank, rank + how_many - 1)
end

-- Puts messages of a claim, from a rank on, back into the store with the scores that they had.
local function put_rest_back(store, claim, rank, how_many, descending)
  for left = how_many, 1, -UNPACKABLE do
    local contents = contents_at(claim, rank, math.min(left, UNPACKABLE), descending)
    local scored = {}
    for k, score in ipairs(redis.call('ZMSCORE', claim, unpack(contents))) do
      scored[2 * k - 1], scored[2 * k] = score, contents[k]
    end
    redis.call('ZREM', claim, unpack(contents))
    zadd(store, 'NX', scored)
  end
end

-- Returns how many of some messages have `enough` bytes of bodies together, or all if they have less.
local function fitting(bodies, contents, enough)
  local bytes = 0
  for k, content in ipairs(contents) do
    bytes = bytes + redis.call('HSTRLEN', bodies, content)
    if bytes >= enough then return k end
  end
  return #contents
end

-- Moves the bodies of the `taken` messages of a claim, up to 8 MiB and the body that exceeds them; other
-- messages go back to the store. Of retries and first deliveries, the kind that is delivered first gets
-- 7 MiB if there are both, and of the other at least one message stays. expired_die: whether messages that
-- have expired go to the dead queue. Returns the numbers of messages that the claim holds now, and of those
-- that have expired.
local function take_bodies(slot, claim, of_claim, taken, now, descending, expired_die)
  redis.call('UNLINK', of_claim) -- somebody may have deleted a claim of this name, but not its bodies
  if taken == 0 or redis.call('EXISTS', slot.bodies) == 0 then return taken, 0 end
  local has_large = redis.call('HEXISTS', slot.stats, 'largeBodies') == 1
  local held, bytes, expired, counts = 0, 0, 0, {}
  local part, in_part, bytes_of_part = {}, 0, 0

  local function write()
    if in_part == 0 then return end
    write_part(of_claim, #counts, part)
    counts[#counts + 1] = in_part
    part, in_part, bytes_of_part = {}, 0, 0
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
    local contents = contents_at(claim, held, how_many, descending)
    if has_large then how_many = fitting(slot.bodies, contents, enough - bytes) end
    local found = redis.call('HMGET', slot.bodies, unpack(contents, 1, how_many))
    redis.call('HDEL', slot.bodies, unpack(contents, 1, how_many))
    local gone, bodies_of_gone = {}, {}
    for k = 1, how_many do
      local body, is_over = found[k] or '', false
      if body ~= '' and string.byte(body) >= EXPIRES then
        body, is_over = claimed_body(claim, contents[k], body, now)
      end
      bytes = bytes + #body
      if is_over then
        gone[#gone + 1], bodies_of_gone[contents[k]] = contents[k], body
      else
        -- A rollback rewrites the part: a large body is no neighbour of others.
        if bytes_of_part + #body > BYTES_A_PART then write() end
        in_part, bytes_of_part = in_part + 1, bytes_of_part + #body
        part[in_part] = body
        if in_part == BODIES_A_PART then write() end
      end
    end
    held = held + how_many - #gone
    if #gone > 0 then let_expire(gone, bodies_of_gone) end
    return how_many
  end

  -- Does so for all messages of one kind.
  local function take(left, enough)
    while left > 0 and bytes < enough do
      left = left - move(math.min(math.ceil((enough - bytes) / LARGE_BODY), left), enough)
    end
    put_rest_back(slot.store, claim, held, left, descending)
  end

  local retries = redis.call('ZCOUNT', claim, '-inf', HIGHEST_RETRY)
  local lead = descending and taken - retries or retries
  take(lead, lead < taken and BYTES_OF_FIRST_KIND or BYTES_A_CLAIM)
  take(taken - lead, math.max(BYTES_A_CLAIM, bytes + 1))
  write()
  if #counts > 0 then write_order(of_claim, descending, counts) end
  return held, expired
end
