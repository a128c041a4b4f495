-- Since when a store has had due messages, where scores are due times. A time that has passed when its
-- message is stored does not say how long the message has waited. So the field dueSince keeps a time
-- since which everything that is due in the store became due or was stored. Retries do not count.
-- Defines: due_since_change
--- include numbers

-- Counts, as a user who may only send must not read what others have sent.
local function has_due(store, at) return redis.call('ZCOUNT', store, '(16', text_of(at)) > 0 end

-- The first due time of a store that has nothing due at `before`, and something at `at`.
local function first_due(store, before, at)
  while at - before > 1 do
    local middle = math.floor((before + at) / 2)
    if has_due(store, middle) then at = middle else before = middle end
  end
  return at
end

-- By how much dueSince changes when messages are stored, before which this is called. None of them
-- is due before `lowest`.
local function due_since_change(store, stats, lowest, now)
  if lowest >= now or has_due(store, lowest) then return 0 end
  local noted = tonumber(redis.call('HGET', stats, 'dueSince') or 0)
  if has_due(store, noted) then return 0 end
  local since = has_due(store, now) and first_due(store, math.max(lowest, noted), now) or now
  return since - noted
end
