-- Stores messages as a send script would, for scripts that are told which one.
-- Defines: store_as
--- include bodies
--- include dated
--- include due_after
--- include store
--- include time

-- pairs_: score, content, score, content, ... as the send script takes them. bodies: nil, or content, body, ... as
-- for store_in_groups, like the other arguments and the answer.
local function store_as(send_script, keys, from, pairs_, bodies, keep_first, largest, limits)
  local now, condition, lowest, first = now_ms(), nil, nil, nil
  local sent = #pairs_ / 2
  if send_script == 'send_first' then
    condition = 'NX'
    pairs_, first = due_after(pairs_, now)
  elseif send_script == 'send_at' then
    pairs_, lowest, first = dated(pairs_, now)
  end
  local priorities = send_script == 'send_last' and pairs_ or nil
  if bodies and priorities then bodies = due_now(bodies, now) end
  return store_in_groups(keys, from, {sent = sent, condition = condition, priorities = priorities,
    values = function() return unpack(pairs_) end, bodies = bodies, keep_first = keep_first, largest = largest,
    lowest = lowest, first = first, now = now, limits = limits})
end
