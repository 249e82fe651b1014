-- spawn: the run that holds a turn starts a subagent: a session of its own, on the same shard and in the same queue, with its turn.
--
-- KEYS    session (the parent's)
-- ARGV    sid fence op seen child turn agent path customization entry call cut limit preview effects ...contents
--         agent: the subagent's name; path: it and the names above it; entry, call: the spawn call's result in the parent;
--         cut: the completed tail that it gets if the child's turn is cut; limit: children with an active turn at once;
--         effects: how many of the values that follow are effects on the parent; contents as in start: the task
-- RETURN  ok first-n last-id | limit last-id: so many run already | superseded | late | gap
-- EVENTS  what its effects say; in the child: entryAdded entryCompleted turnStarted sessionUpdated(running)
--@include session emit enqueue tree end_turn effects fenced contents turn
local s = load_session(sid)
local refused = refuse(s, fence, op, seen)
if refused then return refused end
if redis.call('SCARD', base .. 'spawned:' .. sid) >= tonumber(limit) then return accept(s, op, 'limit', last_id(s)) end
local first, task = s.n + 1, contents + tonumber(effects)
apply(s, contents, task - 1)
flush(s)

local key = base .. 'session:' .. child
local ancestors = sid .. (s.ancestors and ' ' .. s.ancestors or '')
redis.call('HSET', key, 'n', '0', 'ms', '0', 'k', '0', 'status', 'waiting', 'title', 'null', 'archived', 'false', 'agent', agent,
  'queue', s.queue, 'protocol', s.protocol, 'retention', s.retention, 'once', '0', 'digest', '-', 'turn', '', 'wake', '0', 'prev', '-',
  'inputs', redis.call('HGET', s.key, 'inputs') or '', 'customization', customization, 'created', int(now), 'updated', int(now))
redis.call('HSET', key, 'parent', sid, 'root', string.match(ancestors, '%S+$'), 'ancestors', ancestors, 'path', path,
  'parent_turn', s.turn, 'spawn_entry', entry, 'spawn_call', call, 'cut_report', cut)
redis.call('ZADD', base .. 'children:' .. sid, int(s.n), child)  -- in the order of the calls, also within a millisecond
redis.call('SADD', base .. 'spawned:' .. sid, child)
local c = load_session(child)
open_turn(c, turn, preview, task, #ARGV)
flush(c)
enqueue(c)
return accept(s, op, 'ok', int(first), last_id(s))
