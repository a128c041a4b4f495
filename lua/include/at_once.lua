-- Pairs of score and content, of which the score 0 of a message that is due at once becomes now: so
-- it counts as due since it was stored, and follows those that came before it. Include time above it.
local AT_ONCE = '0'

local function dated(pairs_, now)
  now = string.format('%.0f', now)
  for i = 1, #pairs_, 2 do
    if pairs_[i] == AT_ONCE then pairs_[i] = now end
  end
  return pairs_
end
