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
