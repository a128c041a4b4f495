-- The due time of a message that is due at once.
-- Defines: AT_ONCE, dated
--- include numbers
local AT_ONCE = 0
local AT_ONCE_TEXT = '0'

-- Gives messages that are due at once (score 0) the current time as their score. They then count as
-- due since they were stored, and follow messages that were stored before. Returns the pairs, and the
-- lowest of now and their other scores.
local function dated(pairs_, now)
  local now_text, lowest = text_of(now), now
  for i = 1, #pairs_, 2 do
    if pairs_[i] == AT_ONCE_TEXT then
      pairs_[i] = now_text
    else
      lowest = math.min(lowest, pairs_[i])
    end
  end
  return pairs_, lowest
end
