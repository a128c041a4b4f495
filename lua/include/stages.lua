-- The registry of the stages of a slot.
-- Defines: read_stage, write_stage, lost_stage

-- Returns when a stage was begun, in ms as text, or nil; the number of its messages that were published;
-- and the number of values of a message: 2, or 3 with a body.
local function read_stage(stages, name)
  local begun, moved, values =
    string.match(redis.call('HGET', stages, name) or '', '^(%d+) ?(%d*) ?(%d*)$')
  return begun, tonumber(moved) or 0, tonumber(values) or 2
end

local function write_stage(stages, name, begun, moved, values)
  redis.call('HSET', stages, name, string.format('%s %.0f %d', begun, moved, values))
end

-- Returns the error reply for a stage whose messages, together with those already published, are
-- not as many as its task has put there.
local function lost_stage(name, held, moved, put)
  return redis.error_reply(string.format('RMQ_STAGELOST the stage %s holds %.0f messages and %.0f '
    .. 'were published, but its task had put %.0f into it', name, held, moved, put))
end
