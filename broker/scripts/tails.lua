-- tails: the last ids of many sessions of one shard, for observers that have heard nothing for a while.
--
-- KEYS    any
-- ARGV    ...sids
-- RETURN  per session its last id, or '-' when it does not exist
-- EVENTS  none
--@include session
local reply = {}
for i = sids, #ARGV do
  local at = redis.call('HMGET', base .. 'session:' .. ARGV[i], 'n', 'ms')
  reply[#reply + 1] = at[1] and (at[1] .. '-' .. at[2]) or '-'
end
return reply
