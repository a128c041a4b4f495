-- The due time of a message that is due at once.
-- Defines: AT_ONCE, dated
--- include numbers
local AT_ONCE = 0
local AT_ONCE_TEXT = '0'

-- Pairs of score and content, of which the score 0 of a message that is due at once becomes now: so
-- it counts as due since it was stored, and follows those that came before it.
local function dated(pairs_, now)
  now = text_of(now)
  for i = 1, #pairs_, 2 do
    if pairs_[i] == AT_ONCE_TEXT then pairs_[i] = now end
  end
  return pairs_
end
