-- The due time of a message that is due at once.
-- Defines: AT_ONCE, dated
--- include numbers
local AT_ONCE = 0
local AT_ONCE_TEXT = '0'

-- Pairs of score and content, of which the score 0 of a message that is due at once becomes now: so
-- it counts as due since it was stored, and follows those that came before it. And the lowest of now
-- and their scores.
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
