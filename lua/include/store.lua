-- Stores messages, for the scripts that send or publish.
-- Defines: store_in_groups
--- include bodies
--- include bytes
--- include counters
--- include due_since
--- include groups
--- include limits
--- include priorities
--- include wake
-- Returns those of some bodies (content, body, ...) whose messages have none yet, and those that wait with a mark,
-- without it.
local function first_bodies(bodies, pairs_)
  local first, seen = {}, {}
  for i = 1, #pairs_, 2 do
    local content = pairs_[i]
    local waiting = not seen[content] and redis.call('HGET', bodies, content)
    if not seen[content] and (not waiting or is_marked(waiting)) then
      first[#first + 1], first[#first + 2] = content, without_mark(waiting) or pairs_[i + 1]
    end
    seen[content] = true
  end
  return first
end

-- Takes empty bodies, which stand for none, out of messages.bodies, and notes the contents that have none as
-- messages.bare; each is false if there are none. Of equal contents, the last counts.
local function set_bare_apart(messages)
  local pairs_, is_mixed = messages.bodies, false
  for i = 2, #pairs_, 2 do is_mixed = is_mixed or pairs_[i] == '' end
  if not is_mixed then return end
  local last, full, bare = {}, {}, {}
  for i = 1, #pairs_, 2 do last[pairs_[i]] = pairs_[i + 1] end
  for content, body in pairs(last) do
    if body == '' then
      bare[#bare + 1] = content
    else
      full[#full + 1], full[#full + 2] = content, body
    end
  end
  messages.bare, messages.bodies = #bare > 0 and bare, #full > 0 and full
end

-- Wakes who waits for messages of a store, if those just stored are due before all others. added: how many
-- are new to the store.
local function wake_for(store, messages, added)
  if messages.first then
    if added > 0 or not messages.condition then wake_if_first(store, messages.first, messages.now) end
  elseif redis.call('ZCOUNT', store, '-inf', '+inf') == added then
    wake(store, 0)
  end
end

-- Stores messages in one group. Returns the number of new messages there. Copies that wait in the retry
-- queue are removed, and the bodies of copies that wait if their messages have none.
local function store_in_group(store, retry, stats, bodies, messages)
  if messages.keep_first and messages.bodies then
    local first = first_bodies(bodies, messages.bodies)
    if #first > 0 then redis.call('HSET', bodies, unpack(first)) end
  elseif messages.bodies then
    redis.call('HSET', bodies, unpack(messages.bodies))
  end
  local new
  if messages.condition then
    new = redis.call('ZADD', store, messages.condition, messages.values())
  elseif messages.priorities then
    new = redis.call('ZADD', store, unpack(in_turn(messages.priorities, stats)))
  else
    new = redis.call('ZADD', store, messages.values())
  end
  wake_for(store, messages, new)
  -- Not before ZADD: a full Redis 6.2 would store the messages once memory was freed.
  if redis.call('EXISTS', retry) == 1 then
    new = new - redis.call('ZREM', retry, unpack(contents_of({messages.values()})))
  end
  if (messages.bare or not messages.bodies) and redis.call('EXISTS', bodies) == 1 then
    redis.call('HDEL', bodies, unpack(messages.bare or contents_of({messages.values()})))
  end
  return new
end

-- Stores messages, at most 3900, in every group whose keys the caller named. Returns how many were new and merged in
-- the first group, and repeated; or a refusal (limits.lua), and has then stored none. messages:
--   sent: their number. values: returns score, content, score, content, ... condition: NX or nil.
--   priorities: the same values in a table, if scores are priorities; else nil.
--   bodies: nil, or content, body, content, body, ... of all of them; an empty body stands for none.
--   keep_first: whether a message that waits keeps its body. largest: an upper bound of the bytes of contents.
--   lowest: a lower bound of the scores, if they are times that may have passed; else nil.
--   first: the first due time, if scores are due times; else nil. now: in ms. limits: as limits_of takes it, or ''.
local function store_in_groups(keys, from, messages)
  local repeated, refused = 0, nil
  if messages.limits ~= '' then
    repeated, refused = limits_of(messages.limits).admit(keys, from, messages)
    if refused then return refused end
  end
  if messages.bodies then set_bare_apart(messages) end
  local counts
  for k = from, #keys - KEYS_A_GROUP + 1, KEYS_A_GROUP do
    local change = messages.lowest
      and due_since_change(keys[k], keys[k + 2], messages.lowest, messages.now) or 0
    local new = messages.sent == 0 and 0
      or store_in_group(keys[k], keys[k + 1], keys[k + 2], keys[k + 3], messages)
    if messages.bodies then count_large(keys[k + 2], messages.bodies) end
    note_largest(keys[k + 2], messages.largest)
    count(keys[k + 2], 'dueSince', change)
    count(keys[k + 2], 'accepted', messages.sent)
    count(keys[k + 2], 'merged', messages.sent - new)
    count(keys[k + 2], 'repeated', repeated)
    counts = counts or {new, messages.sent - new, repeated}
  end
  return counts
end
