-- release: a worker hands a turn back, for nothing that the turn did; the attempt is given back with it.
--
-- KEYS    session
-- ARGV    sid fence
-- RETURN  released | superseded
-- EVENTS  none
--@include session enqueue
local s = load_session(sid)
if not s or fence == '' or s.fence ~= fence or s.job ~= 'running' then return {'superseded'} end
permit(s)
dequeue(s)
redis.call('HSET', s.key, 'attempts', int(math.max(0, s.attempts - 1)))
enqueue(s)
return {'released'}
