-- resolve: the only place that settles one open callback: by an answer, or by its deadline. `resolved` is the tail of its record.
local function resolve(s, callback, resolved)
  redis.call('HDEL', s.asked, callback)
  disarm('callback', s.sid, callback)
  redis.call('HSET', s.settled, callback, emit(s, s.turn, resolved))
  if redis.call('HLEN', s.asked) == 0 then emit_turn(s, 'running') end
  flush(s)
  resolved_above(s, {callback})
  wake_turn(s)
end
