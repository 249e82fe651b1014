-- end_turn: the only place that ends a turn, and a session.

-- The keys of a session that has ended live as long as the deployment keeps them, and then it leaves the listings and the
-- dead letters; an open one's have no TTL.
local function retire(s)
  disarm('session', s.sid)
  if s.retention == nil or s.retention == '' then return end
  for _, kind in ipairs({'session:', 'log:', 'turns:', 'settled:', 'receipts:', 'blobs:', 'children:'}) do
    redis.call('PEXPIRE', base .. kind .. s.sid, s.retention)
  end
  arm(now + tonumber(s.retention) + 1000, 'gone', s.sid, s.agent .. (redis.call('HGET', s.key, 'dead') or ''))
end

-- What `open` holds, in the order in which it was opened: {field, before, after or nil}.
local function open_entries(s)
  local flat, found = redis.call('HGETALL', s.open), {}
  for i = 1, #flat, 2 do
    local order, rest = string.match(flat[i + 1], '^(%d+)\n(.*)$')
    if order then found[#found + 1] = {order, flat[i], rest} end
  end
  table.sort(found, function(a, b) if a[1] == b[1] then return a[2] < b[2] end return a[1] < b[1] end)
  return found
end

local function text_key(s, entry) return base .. 'text:' .. s.sid .. ':' .. entry end

-- The text of the turn so far, as JSON: the message being written, else the last one completed.
local function text_so_far(s)
  local entry = redis.call('HGET', s.open, 'message')
  if entry then return '"' .. (redis.call('GET', text_key(s, entry)) or '') .. '"' end
  return redis.call('HGET', s.open, 'end') or '""'
end

-- Completes everything that is open with the bytes kept for this moment, and closes the turn's callbacks.
local function cut_open(s)
  for _, entry in ipairs(open_entries(s)) do
    local before, after = string.match(entry[3], '^(.-)\n(.*)$')
    local body = entry[3]
    if before then body = before .. (redis.call('GET', text_key(s, entry[2])) or '') .. after end
    if string.sub(entry[2], 1, 5) == 'call:' then emit_entry(s, s.turn, body) else emit(s, s.turn, body) end
    redis.call('DEL', text_key(s, entry[2]))
  end
  local held, asked = redis.call('HGETALL', s.asked), {}
  for i = 1, #held, 2 do
    if is_own(held[i + 1]) then asked[#asked + 1] = held[i] end
  end
  table.sort(asked)
  for _, callback in ipairs(asked) do
    local id = emit(s, s.turn, '"type":"callbackResolved","callbackId":"' .. callback .. '","private":{"outcome":"closed"}}')
    redis.call('HSET', s.settled, callback, id)
    disarm('callback', s.sid, callback)
  end
  return asked
end

local cut_turn

-- Ends what subagents do, the nearest first: their active turns; with 'terminated' every subagent's session too.
local function end_below(s, state, status)
  local every = status == 'terminated'
  local below = every and redis.call('ZRANGE', base .. 'children:' .. s.sid, 0, -1)
    or redis.call('SMEMBERS', base .. 'spawned:' .. s.sid)
  table.sort(below)
  for _, sid in ipairs(below) do
    local child = load_session(sid)
    if child and child.status ~= 'terminated' then
      if every then redis.call('HSET', child.key, 'termination', redis.call('HGET', s.key, 'termination') or 'ended') end
      if child.turn ~= '' then
        cut_turn(child, state, status)
      elseif every then
        emit_status(child, status)
        flush(child)
        retire(child)
        end_below(child, state, status)
      end
    end
  end
end

local INTERRUPTED = '"type":"interrupted","cause":"interrupted"'

-- `ended` is the tail of the TurnEnded record; `status` the session's afterwards; `below` how the turns of its subagents end;
-- `report` what a subagent's parent gets for it, if not what was kept for a cut.
local function end_turn(s, ended, status, below, report)
  local asked = cut_open(s)
  emit_turn(s, 'terminated')
  local id = emit(s, s.turn, ended)
  if s.once == '1' then status = 'terminated' end
  emit_status(s, status)
  redis.call('HSET', s.turns, s.turn, s.first .. ' ' .. s.prev .. ' ' .. id)
  dequeue(s)
  redis.call('ZREM', base .. 'active', s.sid)
  redis.call('DEL', s.open, s.asked)
  redis.call('HSET', s.key, 'turn', '', 'job', '', 'holder', '', 'attempts', '0', 'prev', id)
  flush(s)
  if status == 'terminated' then retire(s) end
  resolved_above(s, asked)
  report_up(s, report)
  end_below(s, below or INTERRUPTED, status)
  return id
end

-- A cut that no worker takes part in: the fence falls first, so that nothing follows the end.
function cut_turn(s, state, status)
  local ended = '"type":"turnEnded","state":{' .. state .. ',"text":' .. text_so_far(s) .. '}}'
  hint(s, 'stop')
  redis.call('HSET', s.key, 'fence', '')
  return end_turn(s, ended, status, string.find(state, '^"type":"interrupted"') and state)
end

-- Ends a session with its active turn, and those below: `cause` is how.
local function end_session(s, cause)
  local state = '"type":"interrupted","cause":"' .. cause .. '"'
  redis.call('HSET', s.key, 'termination', cause)
  if s.turn ~= '' then
    cut_turn(s, state, 'terminated')
  else
    emit_status(s, 'terminated')
    flush(s)
    retire(s)
    end_below(s, state, 'terminated')
  end
end
