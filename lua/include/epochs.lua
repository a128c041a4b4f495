-- A slot of an exclusive topic keeps, beside the headers, the highest epoch that claimed in it.
-- Defines: EPOCH, needs_an_epoch
local EPOCH = '@epoch'

-- The error reply for a caller without an epoch, or nil.
local function needs_an_epoch(store, stored_epoch, epoch)
  if stored_epoch and not epoch then
    return redis.error_reply('RMQ_EXCLUSIVE the slot of ' .. store .. ' is consumed exclusively')
  end
end
