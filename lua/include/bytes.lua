-- Bounds on the bytes that a call works on, because large messages hold Redis for longer. How large a message is,
-- is known only after reading it. But a slot notes the bytes of the largest content that it was sent.
-- Defines: BYTES_A_CALL, BYTES_A_CLAIM, largest_of, note_largest, in_steps, how_many_fit
--- include counters
-- Of messages that a script reads, which takes up to 10 ns a byte; and of those that commands of Redis move, 1 to 3.
local BYTES_A_CALL, BYTES_A_CLAIM = 1024 * 1024, 8 * 1024 * 1024
-- Contents up to this are not noted: as many as a claim takes at most, 8192, have 8 MiB.
local SMALL = 1024
-- Of how many bytes how_many_fit reads the sizes, and how many messages it reads at once if they may be larger.
local BYTES_LOOKED_AT, READ_AT_ONCE = 512 * 1024, 16

-- Returns a bound of the sizes of a slot's contents. noted, accepted: these fields of its stats. Without any, somebody
-- has stored messages by hand.
local function largest_of(noted, accepted) return tonumber(noted) or accepted and SMALL or math.huge end

-- Notes the size of the largest content that is sent to a slot.
local function note_largest(stats, size)
  if size > SMALL then
    local noted = tonumber(redis.call('HGET', stats, 'largest') or 0)
    count(stats, 'largest', math.max(0, size - noted))
  end
end

-- Works on up to `most` messages, until they have `enough` bytes. step: works on the next ones; takes how many came
-- before and how many it may read, and returns how many it has read and their bytes. largest: no message has more
-- bytes; nil if that is unknown. Returns the sums of both.
local function in_steps(most, enough, step, largest)
  local done, bytes, alike = 0, 0, 1
  while done < most and bytes < enough do
    local sure = math.floor((enough - bytes) / (largest or math.huge))
    local asked = math.min(math.max(1, sure, alike), most - done)
    local read, size = step(done, asked)
    done, bytes = done + read, bytes + size
    if read < asked then break end
    -- As many as fit if they are as large as those before.
    alike = math.min(READ_AT_ONCE, math.floor((enough - bytes) * done / math.max(1, bytes)))
  end
  return done, bytes
end

-- Returns how many of `available` messages have at most `enough` bytes, but at least one, and a bound of the bytes that
-- these have. Never too many; too few if there are large ones among small ones, because it looks at the sizes of few
-- bytes. contents_at: returns some of their contents; takes how many come before, and how many.
local function how_many_fit(available, enough, largest, contents_at)
  if available * largest <= enough then return available, available * largest end
  local fit, bytes, full = 0, 0, false
  in_steps(available, math.max(1, math.min(enough, BYTES_LOOKED_AT)), function(done, how_many)
    local size, read = 0, 0
    for _, content in ipairs(contents_at(done, how_many)) do
      full = done + read > 0 and bytes + size + #content > enough
      if full then break end
      size, read = size + #content, read + 1
    end
    fit, bytes = fit + read, bytes + size
    return read, size
  end, largest)
  local sure = math.min(available - fit, math.floor((enough - bytes) / largest))
  if full or sure <= 0 then return fit, bytes end
  return fit + sure, bytes + sure * largest
end
