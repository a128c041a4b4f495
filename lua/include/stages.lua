-- The registry of the stages of a slot.
-- Defines: read_stage, lost_stage

-- When a stage was begun, in ms as text, or nil; and how many of its messages were published, or nil.
local function read_stage(stages, name)
  local begun, moved = string.match(redis.call('HGET', stages, name) or '', '^(%d+) ?(%d*)$')
  return begun, tonumber(moved)
end

-- The error reply where a stage and what was published of it are not as many messages as its task has
-- put there.
local function lost_stage(name, held, moved, put)
  return redis.error_reply(string.format('RMQ_STAGELOST the stage %s holds %.0f messages and %.0f '
    .. 'were published, where its task had put %.0f', name, held, moved or 0, put))
end
