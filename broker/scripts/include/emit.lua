-- emit: the only place that numbers events. Ids are N-<ms>: dense positions, and a time that never goes back.
-- `tail` is a record's JSON without its opening brace (broker/protocol/wire.py draws it); it is never decoded here.
-- `r` is the mark of the run that writes into its own session, else empty; entries with the same fields pack best.
local function emit(s, turn, tail)
  if #s.out == 0 then
    s.first_out, s.before = s.n + 1, s.ms
    if now > s.ms then s.ms = now end
  end
  s.n = s.n + 1
  local body = (turn and '{"turnId":"' .. turn .. '",' or '{') .. tail
  redis.call('XADD', s.log, last_id(s), 'e', body, 'r', s.run or '')
  s.out[#s.out + 1] = body
  return last_id(s)
end

local function channel(s) return base .. 'live:' .. DB .. ':' .. s.sid end

-- Publishes what emit wrote, and keeps the position. Called before a delta, and once at the end of each script that emits.
-- `p` is the time of the event before: who has another one there has read a history that is no more.
local function flush(s)
  if #s.out == 0 then return end
  redis.call('HSET', s.key, 'n', int(s.n), 'ms', int(s.ms), 'k', '0', 'updated', int(now))
  redis.call('PUBLISH', channel(s), '{"n":' .. int(s.first_out) .. ',"ms":' .. int(s.ms) .. ',"p":' .. int(s.before)
    .. ',"e":[' .. table.concat(s.out, ',') .. ']}')
  s.out, s.k = {}, '0'
end

-- A delta is published, not stored: its id is the last stored one's and a count.
local function emit_delta(s, turn, tail)
  flush(s)
  local k = redis.call('HINCRBY', s.key, 'k', 1)
  redis.call('PUBLISH', channel(s), '{"n":' .. int(s.n) .. ',"ms":' .. int(s.ms) .. ',"k":' .. int(k)
    .. ',"d":{"turnId":"' .. turn .. '",' .. tail .. '}')
end

local function emit_status(s, status)
  s.status = status
  redis.call('HSET', s.key, 'status', status)
  emit(s, nil, '"type":"sessionUpdated","status":"' .. status .. '","title":' .. s.title
    .. ',"archived":' .. s.archived .. '}')
end

local function emit_turn(s, status)
  emit(s, s.turn, '"type":"turnUpdated","status":"' .. status .. '"}')
end

-- An entry that is added complete is stored once: its entryAdded points to the entryCompleted beside it.
local function emit_entry(s, turn, completed)
  local id = emit(s, turn, '"type":"entryAdded","beside":true}')
  emit(s, turn, completed)
  return id
end
