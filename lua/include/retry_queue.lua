-- How often and after what waits a topic delivers a message again, and the queue where it waits.
-- Defines: retry_terms, backoff_ms, retry_score, waits_over
--- include numbers

-- max_retries: a number as text; backoff: ms, by commas.
local function retry_terms(max_retries, backoff)
  local waits = {}
  for wait in string.gmatch(backoff, '%d+') do waits[#waits + 1] = tonumber(wait) end
  return {max_retries = tonumber(max_retries), waits = waits}
end

-- The wait before the delivery that follows one with `left` retries left, in ms.
local function backoff_ms(terms, left)
  if #terms.waits == 0 then return 0 end
  return terms.waits[math.min(#terms.waits, math.max(1, terms.max_retries - left + 1))]
end

-- The retry queue keeps whole seconds beside the retries left, so a wait ends at the next full one.
local function retry_score(due_ms, left) return math.ceil(due_ms / 1000) * 1000 + left end

-- The end, exclusive, of the scores of messages whose wait is over at a time in ms.
local function waits_over(until_ms)
  return '(' .. text_of(math.floor(until_ms / 1000) * 1000 + 1000)
end
