-- Redis' clock in ms. It is the only "now" of the queue, whatever the clients' clocks show.
-- Defines: now_ms
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
