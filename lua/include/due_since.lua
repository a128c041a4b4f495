-- Since when a store whose scores are due times has had due messages. A message may be stored after
-- its due time, so its score does not show how long it has waited. The field dueSince therefore
-- keeps a time since which every message that is due in the store became due or was stored. Retries
-- do not count.
-- Defines: due_since_change
--- include numbers

-- Counts instead of reading: a user who may only send must not see messages of others.
local function has_due(store, at) return redis.call('ZCOUNT', store, '(16', text_of(at)) > 0 end

-- Returns the earliest due time of a store that has nothing due at `before` and something at `at`.
local function first_due(store, before, at)
  while at - before > 1 do
    local middle = math.floor((before + at) / 2)
    if has_due(store, middle) then at = middle else before = middle end
  end
  return at
end

-- Returns by how much dueSince changes with messages that are due from `lowest` on. Call it before
-- they are stored, and count it after.
local function due_since_change(store, stats, lowest, now)
  if lowest >= now or has_due(store, lowest) then return 0 end
  local noted = tonumber(redis.call('HGET', stats, 'dueSince') or 0)
  if has_due(store, noted) then return 0 end
  local since = has_due(store, now) and first_due(store, math.max(lowest, noted), now) or now
  return since - noted
end
