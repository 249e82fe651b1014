-- begin: a claimed job starts to run. Counts the attempt, writes the fence, gives the log's tail.
--
-- KEYS    session
-- ARGV    sid job turn wake fence worker protocol max_attempts after page lease progress
--         lease: in ms, and the job is claimed here, if it is still due: a worker that was rung for it needs no other call;
--         '' = it was claimed before; progress: ms that the run may write nothing, '' = for ever
-- RETURN  dropped: the turn is not at that wake, its id is gone | taken: it is not in its queue, or another run has begun it
--         newer: a record protocol this worker cannot read | dead: attempts are used up, the turn has ended
--         later: the turn's last attempt, and this worker runs another turn on its own: it is due again soon
--         begun attempts last-id inputs customization from agent path entry call, then id body …
--         from: `after`, or 0-0 when the log has no such id; agent: whose workers run it; path: names of subagents below it;
--         entry, call: the spawn call's result in the parent, '' for a root
-- EVENTS  a notice from the second attempt on; the turn's end when dead
--@include session emit enqueue tree end_turn
-- Under its next wake, as whatever goes back into a queue: a repeat of this call must not meet the job again.
local function put_off(s, delay)
  permit(s)
  dequeue(s)
  enqueue(s, delay)
end

-- A turn that ends its worker's process takes its neighbours' attempts with it. So a worker runs one turn at a time on the last
-- attempt: who only stood beside has the process without the culprit, and the culprit is alone when it is counted out.
local function last_chance()
  local key = base .. 'last:' .. worker
  local other = redis.call('GET', key)
  other = other and other ~= sid and load_session(other)
  if other and other.job == 'running' and other.holder == worker and other.attempts >= tonumber(max_attempts) then return false end
  redis.call('SET', key, sid, 'PX', 86400000)
  return true
end

local s = load_session(sid)
local queue = s and queue_key(s)
if not s or s.turn ~= turn or int(s.wake) ~= wake then
  redis.call('DEL', 'arq:job:' .. job)
  if queue then redis.call('ZREM', queue .. ':running', job) end
  return {'dropped'}
end
if s.fence ~= '' and s.fence ~= fence then return {'taken'} end
if lease ~= '' and s.fence ~= fence then
  if redis.call('ZREM', queue, job) == 0 then return {'taken'} end
  redis.call('ZADD', queue .. ':running', int(now + tonumber(lease)), job)
end
if tonumber(s.protocol) > tonumber(protocol) then
  put_off(s, 1000)
  return {'newer'}
end
if s.fence ~= fence then
  permit(s)
  s.attempts = s.attempts + 1
  if s.attempts > tonumber(max_attempts) then
    redis.call('ZADD', base .. 'dead', int(now), sid .. ' ' .. turn)
    redis.call('HSET', s.key, 'dead', (redis.call('HGET', s.key, 'dead') or '') .. ' ' .. turn)
    cut_turn(s, '"type":"failed","error":{"message":"The turn was started ' .. int(s.attempts - 1)
      .. ' times and each worker was lost. It is in the dead letters.","code":"worker_lost","details":{"attempts":'
      .. int(s.attempts - 1) .. '}}', 'waiting')
    return {'dead'}
  end
  if s.attempts > 1 and s.attempts == tonumber(max_attempts) and not last_chance() then
    put_off(s, 100 + micros % 900)  -- not all at once: else one worker claims them all again
    return {'later'}
  end
  redis.call('HSET', s.key, 'attempts', int(s.attempts), 'fence', fence, 'holder', worker, 'job', 'running',
    'op', '0', 'result', '', 'written', int(now), 'progress', progress)
  if progress ~= '' then arm(now + tonumber(progress), 'turn', sid) end
  if s.attempts > 1 then
    s.run = mark_of(fence)
    emit(s, turn, '"type":"notice","level":"warning","source":"worker","message":"The turn runs again: attempt '
      .. int(s.attempts) .. '.","details":{"reason":"worker_lost","attempt":' .. int(s.attempts) .. '}}')
    flush(s)
  end
end
local extra = redis.call('HMGET', s.key, 'inputs', 'customization', 'path', 'spawn_entry', 'spawn_call')
-- What a worker kept of a log that has lost writes since is of no use: it gets the log from its start.
local from = after
if after ~= '0-0' and #redis.call('XRANGE', s.log, after, after) == 0 then from = '0-0' end
local reply = {'begun', int(s.attempts), last_id(s), extra[1] or '', extra[2] or '', from, s.queue, extra[3] or '', extra[4] or '',
  extra[5] or ''}
for _, record in ipairs(redis.call('XRANGE', s.log, '(' .. from, '+', 'COUNT', page)) do
  reply[#reply + 1] = record[1]
  reply[#reply + 1] = record[2][2]
end
return reply
