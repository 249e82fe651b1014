-- interrupt: ends the active turn at once, whoever holds it, and those of its subagents; the sessions stay open.
--
-- KEYS    session
-- ARGV    sid nonce turn
-- RETURN  interrupted end-id | conflict active-turn-or-'-' | missing
-- EVENTS  what is open completed and closed, turnUpdated(terminated) turnEnded(interrupted) sessionUpdated(waiting)
--@include session emit enqueue tree end_turn once
local s = load_session(sid)
if not s then return {'missing'} end
local before = said_before(nonce)
if before then return before end
if s.turn == '' or s.turn ~= turn then return {'conflict', s.turn ~= '' and s.turn or '-'} end
permit(s)
return say(nonce, 'interrupted', cut_turn(s, INTERRUPTED, 'waiting'))
