-- open_session: a session comes to exist.
--
-- KEYS    session
-- ARGV    sid agent queue title protocol retention idle lifetime once digest inputs customization
--         retention, idle, lifetime: in ms, '' = none
-- RETURN  opened | same: it was opened before with the same options | conflict: with others
-- EVENTS  none
--@include session
local held = redis.call('HGET', KEYS[1], 'digest')
if held then return {held == digest and 'same' or 'conflict'} end
redis.call('HSET', KEYS[1], 'n', '0', 'ms', '0', 'k', '0', 'status', 'waiting', 'title', title, 'archived', 'false',
  'agent', agent, 'queue', queue, 'protocol', protocol, 'retention', retention, 'idle', idle,
  'lifetime', lifetime, 'once', once, 'digest', digest,
  'inputs', inputs, 'customization', customization, 'turn', '', 'wake', '0', 'prev', '-', 'created', int(now), 'updated', int(now))
redis.call('ZADD', base .. 'sessions', int(now), sid)
redis.call('ZADD', base .. 'sessions:' .. agent, int(now), sid)
local due = math.min(tonumber(idle) or math.huge, tonumber(lifetime) or math.huge)
if due < math.huge then arm(now + due, 'session', sid) end
return {'opened'}
