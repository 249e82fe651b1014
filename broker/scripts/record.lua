-- record: one turn's state and the session's, read together so that no read is torn.
--
-- KEYS    session
-- ARGV    sid turn
-- RETURN  missing | unknown last-id status: the session has no such turn
--         running last-id text first prev, then place session body of each open callback, the subagents' too: its place in this
--         log, and its record, '' when that is gone
--         ended last-id end-id body first prev
-- EVENTS  none
--@include session emit enqueue tree end_turn
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
local function add(place, of, id)
  local record = redis.call('XRANGE', base .. 'log:' .. of, id, id)[1]
  reply[#reply + 1] = place
  reply[#reply + 1] = of
  reply[#reply + 1] = record and record[2][2] or ''
end
for i = 2, #asked, 2 do
  if is_own(asked[i]) then
    add(asked[i], sid, asked[i])
  else
    for place, of, id in string.gmatch(asked[i], '(%S+) (%S+) (%S+)') do add(place, of, id) end
  end
end
return reply
