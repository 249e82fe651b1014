-- open_session: a session comes to exist, with the starting history that was staged for it.
--
-- KEYS    session
-- ARGV    sid agent queue title protocol retention idle lifetime once digest inputs customization preview note draft events
--         retention, idle, lifetime: in ms, '' = none
--         note: the tail of a notice about these options, which the first turn's start puts into the log, '' = none
--         draft: the try under which a history was staged, '' = none; events: how many that history has
-- RETURN  opened | same: it was opened before with the same options | conflict: with others
--         lost: what was staged is not whole any more
-- EVENTS  none but those of the history
--@include session
local log, blobs = base .. 'log:' .. sid, base .. 'blobs:' .. sid
local held = redis.call('HGET', KEYS[1], 'digest')
if held then
  if draft ~= '' then redis.call('DEL', log .. ':' .. draft, blobs .. ':' .. draft) end
  return {held == digest and 'same' or 'conflict'}
end
local n, ms = '0', '0'
if draft ~= '' then
  local last = redis.call('XREVRANGE', log .. ':' .. draft, '+', '-', 'COUNT', 1)[1]
  if last then n, ms = string.match(last[1], '^(%d+)-(%d+)$') end
  if n ~= events then return {'lost'} end
end
redis.call('HSET', KEYS[1], 'n', n, 'ms', ms, 'k', '0', 'status', 'waiting', 'title', title, 'archived', 'false',
  'agent', agent, 'queue', queue, 'protocol', protocol, 'retention', retention, 'idle', idle,
  'lifetime', lifetime, 'once', once, 'digest', digest,
  'inputs', inputs, 'customization', customization, 'turn', '', 'wake', '0', 'prev', '-', 'created', int(now), 'updated', int(now))
if draft ~= '' then  -- after a write that a full broker refuses, so that it refuses the whole
  redis.call('RENAME', log .. ':' .. draft, log)
  redis.call('PERSIST', log)
  if redis.call('EXISTS', blobs .. ':' .. draft) == 1 then
    redis.call('RENAME', blobs .. ':' .. draft, blobs)
    redis.call('PERSIST', blobs)
  end
end
if note ~= '' then redis.call('HSET', KEYS[1], 'note', note) end
if preview ~= '' then redis.call('HSET', KEYS[1], 'preview', preview) end
redis.call('ZADD', base .. 'sessions', created_place(), sid)
redis.call('ZADD', base .. 'sessions:' .. agent, created_place(), sid)
local due = math.min(tonumber(idle) or math.huge, tonumber(lifetime) or math.huge)
if due < math.huge then arm(now + due, 'session', sid) end
return {'opened'}
