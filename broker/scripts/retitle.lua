-- retitle: the session's title changes, or it is archived or taken back.
--
-- KEYS    session
-- ARGV    sid title archived note    ready JSON; '' = as it is; note: the tail of a notice about the title, '' = none
-- RETURN  changed | same | missing
-- EVENTS  sessionUpdated, then the notice
--@include session emit
local s = load_session(sid)
if not s then return {'missing'} end
local new_title = title ~= '' and title or s.title
local new_archived = archived ~= '' and archived or s.archived
if new_title == s.title and new_archived == s.archived then return {'same'} end
s.title, s.archived = new_title, new_archived
redis.call('HSET', s.key, 'title', s.title, 'archived', s.archived)
emit_status(s, s.status)
if note ~= '' then emit(s, nil, note) end
flush(s)
return {'changed'}
