-- The due times of FixedTime messages. A score above 0 is a due time; one of 0 or less is a delay
-- with its sign changed, which starts when the message is stored. 0 therefore means now.
-- Defines: HIGHEST_DELAY, dated
--- include numbers
local HIGHEST_DELAY = 0 -- as a score

-- Gives messages with a delay their due time as score. A message without a wait then counts as due
-- since it was stored, and follows messages that were stored before. Returns the pairs; a lower bound
-- of their scores, the lowest of now and the due times that were given; and the first due time.
local function dated(pairs_, now)
  local due_of, lowest, first = {}, now, math.huge
  for i = 1, #pairs_, 2 do
    local score = pairs_[i] + 0
    if score > HIGHEST_DELAY then
      if score < lowest then lowest = score end
      if score < first then first = score end
    else
      local due = due_of[score]
      if not due then
        due = text_of(now - score)
        due_of[score] = due
        first = math.min(first, now - score)
      end
      pairs_[i] = due
    end
  end
  return pairs_, lowest, first
end
