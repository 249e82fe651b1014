-- cancel: ends the session with its active turn, and its subagents' sessions. One that has ended stays as it is.
--
-- KEYS    session
-- ARGV    sid
-- RETURN  cancelled | ended: it had ended before | child: it is a subagent's, which ends with its root | missing
-- EVENTS  the turn's end (interrupted, cause cancelled), sessionUpdated(terminated); the same below
--@include session emit enqueue tree end_turn
local s = load_session(sid)
if not s then return {'missing'} end
if s.ancestors then return {'child'} end
if s.status == 'terminated' then return {'ended'} end
permit(s)
end_session(s, 'cancelled')
return {'cancelled'}
