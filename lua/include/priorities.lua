-- The scores of Priority messages in a store: the whole part is the priority, and of equal priorities the
-- message that came first has the highest score. All messages can be told apart up to priorities below 2^21;
-- beyond, a double has fewer digits for the part behind the point, and neighbours get equal scores.
-- Defines: in_turn
local NUMBERS, EXACT_BELOW, DIGITS = 2 ^ 32, 2 ^ 21, 53

-- pairs_: priority, content, ... stats: the slot's counters; the caller then counts the messages there, as
-- accepted or moved.
local function in_turn(pairs_, stats)
  local accepted, moved = redis.call('HGET', stats, 'accepted'), redis.call('HGET', stats, 'moved')
  local scored, number = {}, (accepted or 0) + (moved or 0)
  for i = 1, #pairs_, 2 do
    local priority = pairs_[i] + 0
    local rest = 1 - (number % NUMBERS + 1) / NUMBERS
    if priority >= EXACT_BELOW then -- down, for a sum that is rounded up has another whole part
      local _, exponent = math.frexp(priority)
      local steps = 2 ^ (DIGITS - exponent)
      rest = math.floor(rest * steps) / steps
    end
    scored[i], scored[i + 1] = priority + rest, pairs_[i + 1]
    number = number + 1
  end
  return scored
end
