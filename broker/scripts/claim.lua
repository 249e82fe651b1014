-- claim: due jobs go to `running` under a lease, lapsed leases go back.
--
-- KEYS    queue
-- ARGV    worker nonce slots lease      lease in ms
-- RETURN  wait, then id body …          wait: ms until the next due job or deadline, -1 for none
-- EVENTS  none
--@include session enqueue queue
local queue, span = KEYS[1], tonumber(lease)
local claimed = base .. 'claimed:' .. worker .. ':' .. string.sub(queue, #base + 7)
local function bodies(ids, wait)
  local reply = {int(wait)}
  for _, id in ipairs(ids) do
    reply[#reply + 1] = id
    reply[#reply + 1] = redis.call('GET', 'arq:job:' .. id) or ''
  end
  return reply
end
-- A retry whose first reply was lost gets the same jobs.
local held = redis.call('LRANGE', claimed, 0, -1)
if held[1] == nonce then
  table.remove(held, 1)
  return bodies(held, 0)
end
if not tick(queue, span) then
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue .. ':running', '-inf', '(' .. int(now), 'LIMIT', 0, 100)) do
    put_back(queue, id)
  end
end
local due = redis.call('ZRANGEBYSCORE', queue, '-inf', int(now), 'LIMIT', 0, slots)
for _, id in ipairs(due) do
  redis.call('ZREM', queue, id)
  redis.call('ZADD', queue .. ':running', int(now + span), id)
end
if #due > 0 then
  redis.call('DEL', claimed)
  redis.call('RPUSH', claimed, nonce, unpack(due))
  redis.call('PEXPIRE', claimed, lease)
end
local head = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
local lapse = redis.call('ZRANGE', queue .. ':running', 0, 0, 'WITHSCORES')
if not head[1] or tonumber(head[2]) > now then redis.call('DEL', queue .. ':wake') end
local wait = -1
if head[1] then wait = math.max(0, tonumber(head[2]) - now) end
if lapse[1] then
  local left = math.max(0, tonumber(lapse[2]) - now)
  if wait < 0 or left < wait then wait = left end
end
return bodies(due, wait)
