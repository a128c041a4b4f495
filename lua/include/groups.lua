-- The keys of all groups, into which a message is sent. They begin at the number `from`: store, retry, stats and bodies
-- of each group; behind them, only if the topic has unique_for, the recent messages.
-- Defines: KEYS_A_GROUP, wrong_group_type
--- include types
local KEYS_A_GROUP = 4

local function wrong_group_type(keys, from)
  local groups_to = #keys - (#keys - from + 1) % KEYS_A_GROUP
  for k = from, groups_to, KEYS_A_GROUP do
    local wrong = wrong_type(keys[k], 'zset', keys[k + 1], 'zset', keys[k + 2], 'hash',
      keys[k + 3], 'hash')
    if wrong then return wrong end
  end
  if groups_to < #keys then return wrong_type(keys[#keys], 'zset') end
end
