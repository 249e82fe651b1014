-- enqueue: the only place that wakes. One job id per wake of a turn, enqueued once in its life; arq reads the job key.
local function job_id(s, wake) return tag .. prefix .. s.sid .. ':' .. s.turn .. ':' .. int(wake) end

local function queue_key(s) return base .. 'queue:' .. s.queue end

-- A token names the job, so that an idle worker need not ask for it; it is a hint all the same: the queue is the truth.
local function ring(queue, id)
  redis.call('LPUSH', queue .. ':wake', id)
  redis.call('LTRIM', queue .. ':wake', 0, 1023)
  redis.call('PEXPIRE', queue .. ':wake', 60000)
end

-- Puts the active turn into its queue under its next wake, due after `delay` ms (nil: at once).
local function enqueue(s, delay)
  s.wake = s.wake + 1
  local id, queue = job_id(s, s.wake), queue_key(s)
  redis.call('HSET', s.key, 'wake', int(s.wake), 'job', 'queued', 'fence', '', 'holder', '')
  redis.call('SET', 'arq:job:' .. id, '{"t":null,"f":"run_turn","a":["' .. s.sid .. '","' .. s.turn .. '",'
    .. int(s.wake) .. '],"k":{},"et":' .. int(now) .. '}')
  redis.call('ZADD', queue, int(now + (delay or 0)), id)
  if not delay then ring(queue, id) end
  s.job, s.fence = 'queued', ''
  return id
end

-- Takes the turn's job out of the queue: it parks, ends, or goes back under its next wake.
local function dequeue(s)
  local id, queue = job_id(s, s.wake), queue_key(s)
  redis.call('ZREM', queue, id)
  redis.call('ZREM', queue .. ':running', id)
  redis.call('DEL', 'arq:job:' .. id)
  disarm('turn', s.sid)
end

-- A hint to the worker that holds the turn; its renewals say the same when this is lost.
local function hint(s, word)
  if s.holder and s.holder ~= '' then
    redis.call('PUBLISH', base .. 'control:' .. DB .. ':' .. s.holder, word .. ' ' .. s.sid .. ' ' .. s.turn)
  end
end

-- News for the turn is in the log: whoever parked goes on, whoever runs looks again, whoever is queued will read it.
local function wake_turn(s)
  if s.job == 'parked' then enqueue(s) elseif s.job == 'running' then hint(s, 'news') end
end
