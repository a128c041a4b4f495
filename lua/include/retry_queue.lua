-- The retries of a topic, the waits before them, and the queue where messages wait.
-- Defines: retry_terms, backoff_ms, retry_score, score_of_retry, waits_over
--- include numbers
--- include records

-- max_retries: a number as text; backoff: waits in ms, separated by commas, then ~ and the jitter, if there is one.
local function retry_terms(max_retries, backoff)
  local waits, jitter = {}, string.match(backoff, '~(.+)')
  for wait in string.gmatch(string.match(backoff, '^[^~]*'), '%d+') do waits[#waits + 1] = tonumber(wait) end
  return {max_retries = tonumber(max_retries), waits = waits, jitter = tonumber(jitter or 0)}
end

-- Returns the wait in ms after the rollback of a message with `left` retries left. The jitter is the part of the wait
-- that is shortened by chance: by the hash of content and retry, because Redis gives each call the same random numbers.
local function backoff_ms(terms, left, content)
  if #terms.waits == 0 then return 0 end
  local wait = terms.waits[math.min(#terms.waits, math.max(1, terms.max_retries - left + 1))]
  if terms.jitter == 0 then return wait end
  local chance = tonumber(string.sub(redis.sha1hex(left .. content), 1, 8), 16) / 2 ^ 32
  return math.floor(wait * (1 - terms.jitter * chance))
end

-- The last second whose scores are below 2^53: above, they would be rounded to even numbers.
local LAST_SECOND = 9007199254739

-- Scores keep whole seconds beside the score for the store, less its sign; so a wait ends at the next full
-- second.
local function retry_score(due_ms, score)
  return math.min(math.ceil(due_ms / 1000), LAST_SECOND) * 1000 + math.abs(score)
end

-- Returns the score for the store of a message in the retry queue.
local function score_of_retry(score)
  local rest = score % 1000
  return rest > HIGHEST_RETRY and -rest or rest
end

-- Returns the end (exclusive) of the scores of messages whose wait is over at a time in ms.
local function waits_over(until_ms)
  return '(' .. text_of(math.floor(until_ms / 1000) * 1000 + 1000)
end
