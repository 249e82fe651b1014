-- sweep: active turns that are neither queued, running nor parked go back to their queue. Safe to run twice.
--
-- KEYS    any
-- ARGV    offset page
-- RETURN  seen forgotten put-back       forgotten: sessions that are gone, or have no turn; the page moves up by so many
-- EVENTS  none
--@include session enqueue
local found = redis.call('ZRANGE', base .. 'active', offset, int(tonumber(offset) + tonumber(page) - 1))
local back, forgotten = 0, 0
redis.call('ZREM', base .. 'active', '-')  -- as `permit`: these turns were accepted
for _, sid in ipairs(found) do
  local s = load_session(sid)
  if not s or s.turn == '' then
    redis.call('ZREM', base .. 'active', sid)
    forgotten = forgotten + 1
  elseif s.job ~= 'parked' then
    local id, queue = job_id(s, s.wake), queue_key(s)
    if not redis.call('ZSCORE', queue, id) and not redis.call('ZSCORE', queue .. ':running', id) then
      redis.call('DEL', 'arq:job:' .. id)
      enqueue(s)
      back = back + 1
    end
  end
end
return {int(#found), int(forgotten), int(back)}
