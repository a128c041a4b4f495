-- A slot of an exclusive topic keeps the highest epoch that has claimed in it, beside the headers.
-- Defines: EPOCH, needs_an_epoch
local EPOCH = '@epoch'

-- Returns the error reply for a caller that needs an epoch but has none, or nil.
local function needs_an_epoch(store, stored_epoch, epoch)
  if stored_epoch and not epoch then
    return redis.error_reply('RMQ_EXCLUSIVE the slot of ' .. store .. ' is consumed exclusively')
  end
end
