-- The limits of a topic on what it takes: how much may wait in a slot, and for how long no equal message is accepted.
-- Defines: limits_of, contents_of
--- include bytes
--- include groups
--- include numbers
--- include time

-- Returns the contents of pairs of score and content.
local function contents_of(pairs_)
  local contents = {}
  for i = 2, #pairs_, 2 do contents[i / 2] = pairs_[i] end
  return contents
end

-- text: 'messages bytes ms': how many messages, and how many bytes of Redis' memory may wait in a slot, and for how
-- long a message is not accepted again; each is empty without such a limit. All functions are within this one: to
-- make them costs a call of a topic without limits as much as a command.
local function limits_of(text)
  local most, most_bytes, unique = string.match(text, '^(%d*) (%d*) (%d*)$')
  most, most_bytes, unique = tonumber(most), tonumber(most_bytes), tonumber(unique)

  -- Returns how many of some contents wait in none of two queues. Equal ones are counted once.
  local function how_many_new(contents, store, retry)
    local new, seen = 0, {}
    local stored = redis.call('ZMSCORE', store, unpack(contents))
    local waiting = redis.call('ZMSCORE', retry, unpack(contents))
    for i, content in ipairs(contents) do
      if not (stored[i] or waiting[i] or seen[content]) then new = new + 1 end
      seen[content] = true
    end
    return new
  end

  -- Returns how many messages wait in a group, and the bytes of memory that they take, as far as some messages tell
  -- that are chosen at random. Redis' own MEMORY USAGE looks at the first ones alone.
  local function waiting_in(store, retry, stats, bodies)
    local ENTRY_BYTES, BODY_BYTES, LEAST, MOST = 107, 50, 4, 64
    local largest = largest_of(redis.call('HGET', stats, 'largest'), redis.call('HGET', stats, 'accepted'))
    local some = math.floor(BYTES_A_CALL / largest)
    some = math.max(LEAST, math.min(some, MOST))
    local function bytes_of(how_many, names, of_each, size_of)
      local size = 0
      for _, name in ipairs(names) do size = size + of_each + size_of(name) end
      return #names > 0 and how_many * size / #names or 0
    end
    local stored, retries = redis.call('ZCARD', store), redis.call('ZCARD', retry)
    local bytes = bytes_of(stored, redis.call('ZRANDMEMBER', store, some), ENTRY_BYTES, string.len)
      + bytes_of(retries, redis.call('ZRANDMEMBER', retry, some), ENTRY_BYTES, string.len)
      + bytes_of(redis.call('HLEN', bodies), redis.call('HRANDFIELD', bodies, some), BODY_BYTES,
        function(name) return #name + redis.call('HSTRLEN', bodies, name) end)
    return stored + retries, math.ceil(bytes)
  end

  -- Returns nil if the slot has room for messages in all groups. Else {-1, the place of the group, from 0, that has no
  -- room, how much waits there, 'messages' or 'bytes'}. Messages that only merge always find room. The messages that
  -- cross the limit of bytes find it, too, and so does a call that finds the slot empty: its sender may know an
  -- earlier limit, and would wait forever. pairs_: score, content, ... of at most 3900.
  local function refusal(keys, from, pairs_)
    if #pairs_ == 0 or not (most or most_bytes) then return nil end
    local contents = contents_of(pairs_)
    for k = from, #keys - KEYS_A_GROUP + 1, KEYS_A_GROUP do
      local store, retry, place = keys[k], keys[k + 1], (k - from) / KEYS_A_GROUP
      local waiting, bytes = redis.call('ZCARD', store) + redis.call('ZCARD', retry), 0
      if most_bytes then waiting, bytes = waiting_in(store, retry, keys[k + 2], keys[k + 3]) end
      if waiting > 0 and (waiting + #contents > (most or math.huge) or bytes >= (most_bytes or math.huge)) then
        local new = how_many_new(contents, store, retry)
        if most and new > 0 and waiting + new > most then return {-1, place, waiting, 'messages'} end
        if most_bytes and new > 0 and bytes >= most_bytes then return {-1, place, bytes, 'bytes'} end
      end
    end
  end

  -- Takes messages out that were accepted in the last `unique` ms, and all but the first of equal ones. Returns how
  -- many. messages: as for store_in_groups.
  local function take_repeated_out(recent, pairs_, messages)
    local accepted_at, seen = redis.call('ZMSCORE', recent, unpack(contents_of(pairs_))), {}
    local left, bodies = {}, messages.bodies and {}
    for i = 1, #pairs_, 2 do
      local content, at = pairs_[i + 1], accepted_at[(i + 1) / 2]
      if not (seen[content] or at and tonumber(at) > messages.now - unique) then
        left[#left + 1], left[#left + 2] = pairs_[i], content
        if bodies then bodies[#bodies + 1], bodies[#bodies + 2] = content, messages.bodies[i + 1] end
      end
      seen[content] = true
    end
    messages.sent, messages.bodies = #left / 2, bodies
    messages.values = function() return unpack(left) end
    messages.priorities = messages.priorities and left
    return (#pairs_ - #left) / 2, left
  end

  -- Notes when contents were accepted, and forgets twice as many that may be accepted again.
  local function note_recent(recent, pairs_, now)
    if #pairs_ == 0 then return end
    local noted, at = {}, text_of(now)
    for i = 2, #pairs_, 2 do noted[i - 1], noted[i] = at, pairs_[i] end
    redis.call('ZADD', recent, unpack(noted))
    local over = redis.call('ZRANGEBYSCORE', recent, '-inf', text_of(now - unique), 'LIMIT', 0, #pairs_)
    if #over > 0 then redis.call('ZREM', recent, unpack(over)) end
    redis.call('PEXPIRE', recent, text_of(unique))
  end

  -- Takes what is repeated out of messages, as for store_in_groups, and notes the others as recent. Returns how many
  -- it took out; or nil and a refusal.
  local function admit(keys, from, messages)
    local pairs_, repeated, recent = {messages.values()}, 0, keys[#keys]
    if unique then
      messages.now = messages.now or now_ms()
      repeated, pairs_ = take_repeated_out(recent, pairs_, messages)
    end
    local refused = refusal(keys, from, pairs_)
    if refused then return nil, refused end
    if unique then note_recent(recent, pairs_, messages.now) end
    return repeated
  end

  return {refusal = refusal, admit = admit, waiting_in = waiting_in}
end
