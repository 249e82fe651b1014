-- session: where a session's keys lie, what the server's clock says, one session read whole.
-- KEYS[1] fixes the shard; every other name is built from its tag, so it lies in the same slot.
local base = string.match(KEYS[1], '^(.-{s%d+}:)')
local tag = string.match(base, '{s%d+}')
local prefix = string.sub(base, 1, #base - #tag - 1)

local function int(number) return string.format('%.0f', number) end

-- Server time in ms, and its µs beyond them; `clock` is an offset that only tests set.
local function read_clock()
  local time = redis.call('TIME')
  local offset = redis.call('GET', base .. 'clock')
  local ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + (offset and tonumber(offset) or 0)
  return ms, tonumber(time[2]) % 1000
end
local now, micros = read_clock()

-- A place in a listing by creation, in µs: sessions of one ms are in their order too.
local function created_place() return int(now * 1000 + micros) end

local FIELDS = {'n', 'ms', 'k', 'status', 'title', 'archived', 'agent', 'queue', 'protocol', 'retention', 'once',
  'turn', 'job', 'wake', 'fence', 'op', 'result', 'attempts', 'holder', 'first', 'prev', 'ancestors'}

-- A session as a table, or nil. `n`-`ms` is the id of its last stored event; `ancestors`, of a subagent's session alone, names
-- its parent first and its root last.
local function load_session(sid)
  local s = {sid = sid, key = base .. 'session:' .. sid, out = {}}
  local values = redis.call('HMGET', s.key, unpack(FIELDS))
  if not values[4] then return nil end
  for i = 1, #FIELDS do s[FIELDS[i]] = values[i] or nil end
  s.n, s.ms, s.wake, s.op = tonumber(s.n), tonumber(s.ms), tonumber(s.wake or 0), tonumber(s.op or 0)
  s.attempts = tonumber(s.attempts or 0)
  s.log, s.open, s.asked = base .. 'log:' .. sid, base .. 'open:' .. sid, base .. 'asked:' .. sid
  s.settled, s.turns = base .. 'settled:' .. sid, base .. 'turns:' .. sid
  return s
end

-- `deadlines` holds what is looked at when nothing else happens: a kind and its ids, by the time when to look, in ms. Events never
-- touch it: what is looked at too early is armed again (expire.lua).
local function arm(due, ...) redis.call('ZADD', base .. 'deadlines', int(due), table.concat({...}, ' ')) end
local function disarm(...) redis.call('ZREM', base .. 'deadlines', table.concat({...}, ' ')) end

-- A run's mark on what it stores: short, of the fence that it sent itself, so that what a fenced run wrote would show it.
local function mark_of(fence) return string.sub(fence, 1, 6) .. (string.match(fence, ':%d+$') or '') end

local function last_id(s) return int(s.n) .. '-' .. int(s.ms) end

-- Redis lets a script that has written go on over maxmemory; this first write of nothing is one it always allows.
-- Scripts that let running work go on or end call it; scripts that bring new work do not, and are refused whole.
local function permit(s) redis.call('HDEL', s.key, '-') end
