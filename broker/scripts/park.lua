-- park: only answers are missing. The job goes, and with it the worker's slot, lease and task.
--
-- KEYS    session
-- ARGV    sid fence op seen
-- RETURN  parked | more: there is news after `seen`, fold it and decide again | superseded | late | gap
-- EVENTS  none
--@include session enqueue fenced
local s = load_session(sid)
local refused = refuse(s, fence, op, seen)
if refused then return refused end
permit(s)
if seen ~= last_id(s) then return accept(s, op, 'more', last_id(s)) end
dequeue(s)
redis.call('HSET', s.key, 'job', 'parked', 'attempts', '0', 'holder', '')
return accept(s, op, 'parked')
