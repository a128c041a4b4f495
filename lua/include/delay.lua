-- Pairs of timeRange and content as pairs of due time and content. Include time above it.
local function due_after(pairs_, now)
  local delayed, time_range, due = {}, nil, nil
  for i = 1, #pairs_, 2 do
    if pairs_[i] ~= time_range then
      time_range = pairs_[i]
      due = string.format('%.0f', now + time_range)
    end
    delayed[i], delayed[i + 1] = due, pairs_[i + 1]
  end
  return delayed
end
