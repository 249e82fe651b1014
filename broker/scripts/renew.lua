-- renew: a worker says that it lives, which agents it serves, and which jobs it holds.
--
-- KEYS    queue
-- ARGV    worker agent lease slots version ...jobs    lease in ms; slots 0: it takes nothing more, and is not registered
-- RETURN  id why …, the jobs it holds no longer: lost, put back for others | ended, its turn was cut
--         what it has itself parked or ended is not among them: that write's reply says so
-- EVENTS  none
--@include session enqueue queue
local queue, span = KEYS[1], tonumber(lease)
tick(queue, span)
if slots ~= '0' then
  -- Whoever serves says so again long before a day is over; where nobody does, nothing is left.
  for _, listing in ipairs({base .. 'workers', base .. 'workers:' .. agent}) do
    redis.call('ZADD', listing, int(now + span), worker)
    redis.call('ZREMRANGEBYSCORE', listing, '-inf', '(' .. int(now))
    redis.call('PEXPIRE', listing, int(math.max(span * 4, 86400000)))
  end
  redis.call('HSET', base .. 'worker:' .. worker, 'slots', slots, 'version', version, 'agent:' .. agent, int(now))
  redis.call('PEXPIRE', base .. 'worker:' .. worker, int(span * 4))
end
local function why(id)
  local sid, turn, wake = parse_job(id)
  local s = sid and load_session(sid)
  if not s or s.turn ~= turn then
    local own = s and s.turn == '' and string.sub(s.fence or '', 1, #worker + 1) == worker .. ':'
    return not own and 'ended' or nil
  end
  if int(s.wake) == wake and s.job == 'parked' then return nil end
  return 'lost'
end
local gone = {}
for i = jobs, #ARGV do
  if redis.call('ZSCORE', queue .. ':running', ARGV[i]) then
    redis.call('ZADD', queue .. ':running', int(now + span), ARGV[i])
  else
    local reason = why(ARGV[i])
    if reason then
      gone[#gone + 1] = ARGV[i]
      gone[#gone + 1] = reason
    end
  end
end
return gone
