-- queue: leases over jobs. A broker that was away is not a dead fleet: when nobody has moved the tick for a third of a lease,
-- every running deadline starts anew and nothing is reaped.
-- The tag's shard begins the session's id: that tells where a prefix ends, whatever it ends with.
local function parse_job(id)
  return string.match(id, '(' .. string.match(tag, '%d+') .. '%-%x+%-%x+%-%x+%-%x+%-%x+):([^:]+):(%d+)$')
end

local function tick(queue, lease)
  redis.call('ZREM', queue .. ':running', '-')  -- as `permit`: leases must not lapse because memory is full
  local last = tonumber(redis.call('GET', queue .. ':tick') or '-1')
  redis.call('SET', queue .. ':tick', int(now), 'PX', int(math.max(lease * 100, 3600000)))
  local away = last >= 0 and (now - last > lease / 3 or last > now)
  if away then
    local held = redis.call('ZRANGE', queue .. ':running', 0, -1, 'WITHSCORES')
    for i = 1, #held, 2 do
      -- A worker with a shorter lease cuts nobody's; but after a clock that went back every deadline lies too far ahead.
      if last > now or tonumber(held[i + 1]) < now + lease then
        redis.call('ZADD', queue .. ':running', int(now + lease), held[i])
      end
    end
  end
  return away
end

-- A turn whose lease lapsed, or that is handed back, returns under its next wake; an id whose turn moved on is dropped.
local function put_back(queue, id)
  redis.call('ZREM', queue .. ':running', id)
  redis.call('DEL', 'arq:job:' .. id)
  local sid, turn, wake = parse_job(id)
  local s = sid and load_session(sid)
  if s and s.turn == turn and int(s.wake) == wake then enqueue(s) end
end
