-- expire: what is due in `deadlines` happens; what is looked at too early is armed again.
--
-- KEYS    any
-- ARGV    page late
--         page: deadlines of one call; late: in ms. A turn's progress that is looked at later than that says that nobody was there
--         to look, the broker or every worker was away: its holder gets twice as long to write, or to lose its lease
-- RETURN  wait sweep    wait: ms until the next deadline, -1 = there is none; sweep: 1 = it is this caller's to sweep, once a minute
-- EVENTS  callbackResolved (expired), then turnUpdated(running) if none is open any more; the turn's end (interrupted, failed);
--         sessionUpdated(terminated)
--@include session emit enqueue tree resolve end_turn
local DUE = {}

function DUE.callback(sid, callback)
  local s = load_session(sid)
  if not s or not redis.call('HGET', s.asked, callback) then return end
  resolve(s, callback, '"type":"callbackResolved","callbackId":"' .. callback .. '","private":{"outcome":"expired"}}')
end

-- When a session last had an event or was queued, or one of the subagents at work for it; `now` while one of their turns runs.
local function last_event(s)
  if s.job == 'running' then return now end
  local last = tonumber(redis.call('HGET', s.key, 'updated'))
  if s.job == 'queued' then last = math.max(last, tonumber(redis.call('ZSCORE', queue_key(s), job_id(s, s.wake)) or 0)) end
  for _, sid in ipairs(redis.call('SMEMBERS', base .. 'spawned:' .. s.sid)) do
    local child = load_session(sid)
    if child then last = math.max(last, last_event(child)) end
  end
  return last
end

function DUE.session(sid)
  local s = load_session(sid)
  if not s or s.status == 'terminated' then return end
  local held = redis.call('HMGET', s.key, 'created', 'lifetime', 'idle')
  local lifetime, idle = tonumber(held[2] or ''), tonumber(held[3] or '')
  lifetime = lifetime and tonumber(held[1]) + lifetime or math.huge
  if lifetime <= now then return end_session(s, 'lifetime_limit') end
  idle = idle and last_event(s) + idle or math.huge
  if idle <= now then return end_session(s, 'idle_limit') end
  if math.min(lifetime, idle) < math.huge then arm(math.min(lifetime, idle), 'session', sid) end
end

-- A turn that is queued or parked has no worker to write for it: `begin` arms this again.
function DUE.turn(sid, _, score)
  local s = load_session(sid)
  if not s or s.turn == '' or s.job ~= 'running' then return end
  local held = redis.call('HMGET', s.key, 'written', 'progress')
  local progress = tonumber(held[2] or '')
  if not progress then return end
  local due = tonumber(held[1]) + progress
  if due > now then return arm(due, 'turn', sid) end
  if now - score > tonumber(late) then return arm(now + tonumber(late) * 2, 'turn', sid) end
  cut_turn(s, '"type":"failed","error":{"message":"The turn made no progress: its worker wrote nothing for '
    .. int(progress / 1000) .. ' s.","code":"no_progress"}', 'waiting')
end

-- The keys of an ended session are gone, unless its id was opened again.
function DUE.gone(sid, rest)
  local s = load_session(sid)
  if s and s.status == 'terminated' then return arm(now + 60000, 'gone', sid, rest) end
  if s then return end
  local agent, dead = string.match(rest, '^(%S+)(.*)$')
  redis.call('ZREM', base .. 'sessions', sid)
  redis.call('ZREM', base .. 'sessions:' .. agent, sid)
  for turn in string.gmatch(dead, '%S+') do redis.call('ZREM', base .. 'dead', sid .. ' ' .. turn) end
end

local deadlines = base .. 'deadlines'
redis.call('ZREM', deadlines, '-')  -- as `permit`: what is over must end when memory is full
local due = redis.call('ZRANGEBYSCORE', deadlines, '-inf', int(now), 'WITHSCORES', 'LIMIT', 0, page)
for i = 1, #due, 2 do
  redis.call('ZREM', deadlines, due[i])  -- first: one that cannot be handled is in nobody's way again
  local kind, sid, rest = string.match(due[i], '^(%a+) (%S+) ?(.*)$')
  if DUE[kind] then DUE[kind](sid, rest, tonumber(due[i + 1])) end
end
local next_due = redis.call('ZRANGE', deadlines, 0, 0, 'WITHSCORES')
local wait = next_due[1] and math.max(0, tonumber(next_due[2]) - now) or -1
return {int(wait), redis.call('SET', base .. 'swept', '1', 'NX', 'PX', 60000) and 1 or 0}
