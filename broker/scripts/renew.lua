-- renew: a worker says that it lives, which agents it serves, and which jobs it holds.
--
-- KEYS    queue
-- ARGV    worker agent lease slots version ...jobs    lease in ms
-- RETURN  the jobs it holds no longer: put back, interrupted or ended
-- EVENTS  none
--@include session enqueue queue
local queue, span = KEYS[1], tonumber(lease)
tick(queue, span)
-- Whoever serves says so again long before a day is over; where nobody does, nothing is left.
for _, listing in ipairs({base .. 'workers', base .. 'workers:' .. agent}) do
  redis.call('ZADD', listing, int(now + span), worker)
  redis.call('ZREMRANGEBYSCORE', listing, '-inf', '(' .. int(now))
  redis.call('PEXPIRE', listing, int(math.max(span * 4, 86400000)))
end
redis.call('HSET', base .. 'worker:' .. worker, 'slots', slots, 'version', version, 'agent:' .. agent, int(now))
redis.call('PEXPIRE', base .. 'worker:' .. worker, int(span * 4))
local lost = {}
for i = jobs, #ARGV do
  if redis.call('ZSCORE', queue .. ':running', ARGV[i]) then
    redis.call('ZADD', queue .. ':running', int(now + span), ARGV[i])
  else
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
