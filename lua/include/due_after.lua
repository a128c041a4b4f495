-- The due times of messages whose scores are timeRanges.
-- Defines: due_after
--- include numbers

-- Turns pairs of timeRange and content into pairs of due time and content. Returns them, and the first due time.
local function due_after(pairs_, now)
  local delayed, due_of, first = {}, {}, math.huge
  for i = 1, #pairs_, 2 do
    local time_range = pairs_[i]
    local due = due_of[time_range]
    if not due then
      due = text_of(now + time_range)
      due_of[time_range] = due
      first = math.min(first, now + time_range)
    end
    delayed[i], delayed[i + 1] = due, pairs_[i + 1]
  end
  return delayed, first
end
