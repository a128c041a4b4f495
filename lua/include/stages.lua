-- The registry of the stages of a slot.
-- Defines: read_stage, lost_stage

-- Returns when a stage was begun, in ms as text, or nil; and the number of its messages
-- that were published, or nil.
local function read_stage(stages, name)
  local begun, moved = string.match(redis.call('HGET', stages, name) or '', '^(%d+) ?(%d*)$')
  return begun, tonumber(moved)
end

-- Returns the error reply for a stage whose messages, together with those already published, are
-- not as many as its task has put there.
local function lost_stage(name, held, moved, put)
  return redis.error_reply(string.format('RMQ_STAGELOST the stage %s holds %.0f messages and %.0f '
    .. 'were published, but its task had put %.0f into it', name, held, moved or 0, put))
end
