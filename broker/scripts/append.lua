-- append: one write of the run that holds the turn.
--
-- KEYS    session
-- ARGV    sid fence op seen expires ...effects    expires: ms that a callback which opens stays open, '' = for ever
-- RETURN  ok first-n last-id | superseded | late | gap
-- EVENTS  what its effects say (include/effects.lua), turnUpdated(blocked) when a first callback opened
--@include session emit enqueue tree end_turn effects fenced
local s = load_session(sid)
local refused = refuse(s, fence, op, seen)
if refused then return refused end
permit(s)
s.expires = tonumber(expires)
local first = s.n + 1
apply(s, effects)
flush(s)
return accept(s, op, 'ok', int(first), last_id(s))
