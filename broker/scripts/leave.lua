-- leave: a worker serves an agent no more.
--
-- KEYS    queue
-- ARGV    worker agent
-- RETURN  left
-- EVENTS  none
--@include session
redis.call('ZREM', base .. 'workers', worker)
redis.call('ZREM', base .. 'workers:' .. agent, worker)
redis.call('DEL', base .. 'worker:' .. worker)
return {'left'}
