-- cancel: ends the session, and its active turn with it. A session that has ended stays as it is.
--
-- KEYS    session
-- ARGV    sid
-- RETURN  cancelled | ended: it had ended before | missing
-- EVENTS  the turn's end (interrupted, cause cancelled), sessionUpdated(terminated)
--@include session emit enqueue end_turn
local s = load_session(sid)
if not s then return {'missing'} end
if s.status == 'terminated' then return {'ended'} end
permit(s)
end_session(s, 'cancelled')
return {'cancelled'}
