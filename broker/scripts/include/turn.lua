-- turn: the only place that starts one. Its first entry, what the turn is about, is among ARGV from `from` to `to`.
local function open_turn(s, turn, preview, from, to)
  s.turn, s.first = turn, int(s.n + 1) .. '-' .. int(math.max(now, s.ms))
  redis.call('HSET', s.key, 'turn', turn, 'first', s.first, 'attempts', '0', 'op', '0', 'result', '')
  redis.call('HSETNX', s.key, 'preview', preview)
  redis.call('HSET', s.turns, turn, s.first .. ' ' .. (s.prev or '-') .. ' -')
  redis.call('ZADD', base .. 'active', int(now), s.sid)
  add_contents(s, from, to)
  emit(s, turn, '"type":"turnStarted"}')
  emit_status(s, 'running')
end

-- Starts the turn of a message, all of whose contents are ARGV from `from` on, and queues it.
local function start_turn(s, turn, preview, from)
  local first = ARGV[from] == 'blob' and from + 3 or from
  open_turn(s, turn, preview, from, first)
  add_contents(s, first + 1, #ARGV)
  if s.prev == '-' then
    local said = redis.call('HGET', s.key, 'note')
    if said and said ~= '' then emit(s, nil, said) end
  end
  if redis.call('ZCOUNT', base .. 'workers:' .. s.agent, int(now), '+inf') == 0 then
    emit(s, turn, '"type":"notice","level":"warning","source":"agent:' .. s.agent
      .. '","message":"No worker serves agent ' .. s.agent .. ' now; the turn waits in its queue.","details":null}')
  end
  flush(s)
  enqueue(s)
end
