-- record: one turn's state and the session's, read together so that no read is torn.
--
-- KEYS    session
-- ARGV    sid turn
-- RETURN  missing | unknown last-id status: the session has no such turn
--         running last-id text first prev, then id body of each open callback
--         ended last-id end-id body first prev
-- EVENTS  none
--@include session emit enqueue end_turn
local s = load_session(sid)
if not s then return {'missing'} end
local known = redis.call('HGET', s.turns, turn)
if not known then return {'unknown', last_id(s), s.status} end
local first, prev, ended = string.match(known, '^(%S+) (%S+) (%S+)$')
if ended ~= '-' then
  local record = redis.call('XRANGE', s.log, ended, ended)[1]
  local body = record and record[2][2] or ''
  local blob = string.match(body, '^{"turnId":"[^"]+","type":"turnEnded","blob":"([^"]+)"')
  if blob then body = '{"turnId":"' .. turn .. '",' .. (redis.call('HGET', base .. 'blobs:' .. sid, blob) or '') end
  return {'ended', last_id(s), ended, body, first, prev}
end
local reply = {'running', last_id(s), text_so_far(s), first, prev}
local asked = redis.call('HGETALL', s.asked)
for i = 2, #asked, 2 do
  local record = redis.call('XRANGE', s.log, asked[i], asked[i])[1]
  if record then
    reply[#reply + 1] = record[1]
    reply[#reply + 1] = record[2][2]
  end
end
return reply
