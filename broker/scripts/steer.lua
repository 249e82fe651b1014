-- steer: a message joins one named turn, if that is the active one.
--
-- KEYS    session
-- ARGV    sid nonce turn ...contents   (contents as in start)
-- RETURN  joined turn | conflict active-turn-or-'-' | child | missing
-- EVENTS  entryAdded entryCompleted, for the message and each context message, then notices
--@include session emit enqueue once contents
local s = load_session(sid)
if not s then return {'missing'} end
if s.ancestors then return {'child'} end
local before = said_before(nonce)
if before then return before end
if s.turn == '' or s.turn ~= turn then return {'conflict', s.turn ~= '' and s.turn or '-'} end
add_contents(s, contents, #ARGV)
flush(s)
-- A parked turn reads it when an answer wakes it: nothing can be done with it before.
if s.job == 'running' then hint(s, 'news') end
return say(nonce, 'joined', turn)
