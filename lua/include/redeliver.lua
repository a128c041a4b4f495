-- Reads an existing claim again.
-- Defines: redeliver
--- include records

-- Returns the contents of a claim and the retries that they have left, both by rank.
local function by_rank(items, record)
  local contents, left = {}, {}
  for i = 1, #items, 2 do
    local score = tonumber(items[i + 1])
    local whole = math.floor(score)
    local rank = (score - whole) * 2048
    contents[rank], left[rank] = items[i], whole - record.stamp * 1000
  end
  return contents, left
end

-- Takes one retry from each message that has one left. A replay alone never makes a message dead.
local function charge(prepare, record, contents, left)
  local rescored = {}
  for rank, retries in pairs(left) do
    if retries > 0 then
      left[rank] = retries - 1
      rescored[#rescored + 1] = record.stamp * 1000 + left[rank] + rank / 2048
      rescored[#rescored + 1] = contents[rank]
    end
  end
  if #rescored > 0 then redis.call('ZADD', prepare, 'XX', unpack(rescored)) end
end

-- Returns the claim as it was made, without messages rolled back since, and renews its lease. For a
-- newer run, this is a new delivery: it costs a retry, unless the claim was undelivered (run 0).
local function redeliver(slot, record, run, deadline)
  local found, found_scores, found_left = {}, {}, {}
  if record.stamp > 0 then
    local base, past = claim_range(record.stamp)
    local contents, left = by_rank(
      redis.call('ZRANGEBYSCORE', slot.prepare, base, past, 'WITHSCORES'), record)
    if record.run > 0 and record.run < run then charge(slot.prepare, record, contents, left) end
    local scores = first_scores(slot.first, record)
    for rank = 0, record.count - 1 do
      if contents[rank] then
        found[#found + 1] = contents[rank]
        found_scores[#found], found_left[#found] = scores[rank + 1], left[rank]
      end
    end
  end
  record.run, record.deadline = run, deadline
  write_record(slot.claims, record)
  return {record.moved, 0, found, table.concat(found_scores, ' '), found_left, record.made}
end
