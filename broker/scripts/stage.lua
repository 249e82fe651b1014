-- stage: a page of a starting history, kept apart until `open_session` makes the session exist with it.
--
-- KEYS    session
-- ARGV    sid draft first ttl ...contents
--         draft: the name of this try, so that two tries never mix; first: position of the page's first event; ttl: in ms, from
--         now, for all pages; contents: completed tails; a tail may be a blob reference, in which case 'blob' id bytes stand before it
-- RETURN  staged events: the draft holds that many | exists: the session does | lost: pages before this one are gone
-- EVENTS  entryAdded entryCompleted of each entry, and notices, which nobody sees before the session exists
--@include session emit contents
if redis.call('EXISTS', KEYS[1]) == 1 then return {'exists'} end
local s = {sid = sid .. ':' .. draft, n = 0, ms = 0, out = {}}
s.log = base .. 'log:' .. s.sid
local last = redis.call('XREVRANGE', s.log, '+', '-', 'COUNT', 1)[1]
if last then
  local n, ms = string.match(last[1], '^(%d+)-(%d+)$')
  s.n, s.ms = tonumber(n), tonumber(ms)
end
if s.n >= tonumber(first) then return {'staged', int(s.n)} end  -- a repeat whose first reply was lost
if s.n + 1 < tonumber(first) then return {'lost'} end
add_contents(s, contents, #ARGV)
redis.call('PEXPIRE', s.log, ttl)
redis.call('PEXPIRE', base .. 'blobs:' .. s.sid, ttl)
return {'staged', int(s.n)}
