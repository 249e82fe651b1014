-- finish: the run has decided how its turn ends.
--
-- KEYS    session
-- ARGV    sid fence op seen ended report blob body ...effects    ended: the tail of turnEnded; seen '' = ends whatever came
--         since (a failure); report: of a subagent, the completed tail of its spawn call's result, with its blob if it has one
-- RETURN  finished end-id | more last-id: there is news after `seen` | superseded | late | gap
-- EVENTS  what its effects say, what is open completed and closed, turnUpdated(terminated) turnEnded sessionUpdated;
--         in the parent, the result of the spawn call
--@include session emit enqueue tree end_turn effects fenced
local s = load_session(sid)
local refused = refuse(s, fence, op, seen)
if refused then return refused end
permit(s)
if seen ~= '' and seen ~= last_id(s) then return accept(s, op, 'more', last_id(s)) end
apply(s, effects)
if blob ~= '' then redis.call('HSET', base .. 'blobs:' .. redis.call('HGET', s.key, 'parent'), blob, body) end
return accept(s, op, 'finished', end_turn(s, ended, 'waiting', nil, report ~= '' and report or nil))
