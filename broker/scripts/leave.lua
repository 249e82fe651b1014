-- leave: a worker serves an agent no more. It rings for what is due: it may have taken a token that it does nothing with.
--
-- KEYS    queue
-- ARGV    worker agent
-- RETURN  left
-- EVENTS  none
--@include session enqueue
redis.call('ZREM', base .. 'workers', worker)
redis.call('ZREM', base .. 'workers:' .. agent, worker)
redis.call('DEL', base .. 'worker:' .. worker)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', int(now), 'LIMIT', 0, 1)
if due[1] then ring(KEYS[1], due[1]) end
return {'left'}
