-- answer: the first answer of a callback counts.
--
-- KEYS    session
-- ARGV    sid callback nonce resolved call result ...blob
--         resolved: the tail of callbackResolved, the answer among its private fields; call, result: for a client tool, the
--         open field of its call and the bytes that complete it from now on; blob: id and body that `resolved` refers to, if any
-- RETURN  answered | lost id body: another answer counted, in that record | unknown | missing
-- EVENTS  callbackResolved, then turnUpdated(running) if none is open any more; in each session above that too
--@include session emit enqueue tree resolve once
local s = load_session(sid)
if not s then return {'missing'} end
local before = said_before(nonce)
if before then return before end
local open = redis.call('HGET', s.asked, callback)
if not open or not is_own(open) then
  local id = redis.call('HGET', s.settled, callback)
  if not id then return {'unknown'} end
  local record = redis.call('XRANGE', s.log, id, id)[1]
  return {'lost', id, record and record[2][2] or ''}
end
permit(s)
if ARGV[blob] then redis.call('HSET', base .. 'blobs:' .. sid, ARGV[blob], ARGV[blob + 1]) end
if call ~= '' then
  local held = redis.call('HGET', s.open, call)
  if held then redis.call('HSET', s.open, call, string.match(held, '^%d+\n') .. result) end
end
resolve(s, callback, resolved)
return say(nonce, 'answered')
