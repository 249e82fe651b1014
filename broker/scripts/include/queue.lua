-- queue: leases over jobs. A broker that was away is not a dead fleet: when nobody has moved the tick for a third of a lease,
-- every running deadline starts anew and nothing is reaped. Nor when there is no tick: nobody knows who was kept away.
--
-- Leases may differ by worker, and one with a long lease looks seldom. So whoever looks with the shortest leaves a promise beside
-- the tick: by when it looks again. A promise that was broken says the same as an old tick, once: it becomes the caller's then,
-- so that a worker that died with a short lease is found out by those with longer ones. And once in the caller's lease only: one
-- that dies again and again breaks many promises, and must keep nobody else's jobs.
-- The tag's shard begins the session's id: that tells where a prefix ends, whatever it ends with.
local function parse_job(id)
  return string.match(id, '(' .. string.match(tag, '%d+') .. '%-%x+%-%x+%-%x+%-%x+%-%x+):([^:]+):(%d+)$')
end

local function tick(queue, lease)
  redis.call('ZREM', queue .. ':running', '-')  -- as `permit`: leases must not lapse because memory is full
  local ttl = int(math.max(lease * 100, 86400000))
  local last = tonumber(redis.call('GET', queue .. ':tick') or '')
  local due, shortest, spared = string.match(redis.call('GET', queue .. ':promise') or '', '^(%d+) (%d+) (%d+)$')
  due, shortest, spared = tonumber(due), tonumber(shortest) or lease, math.min(tonumber(spared) or 0, now)
  local away = not last or last > now or now - last > math.max(lease, shortest) / 3
  local broken = shortest < lease and now > due
  if broken and not away and now - spared > lease then
    away, spared = true, now
  end
  redis.call('SET', queue .. ':tick', int(now), 'PX', ttl)
  if away or broken or lease <= shortest then
    redis.call('SET', queue .. ':promise', int(now + lease / 3) .. ' ' .. int(lease) .. ' ' .. int(spared), 'PX', ttl)
  end
  if away then
    -- Each has a lease again, or what was left of its own if that is more: the time away has not counted.
    local anew, gap = now + math.min(lease, shortest), now - (last or now)
    local held = redis.call('ZRANGE', queue .. ':running', 0, -1, 'WITHSCORES')
    for i = 1, #held, 2 do
      redis.call('ZADD', queue .. ':running', int(math.max(anew, tonumber(held[i + 1]) + gap)), held[i])
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
