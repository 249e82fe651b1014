-- effects: what one write of a worker does, in its order, from ARGV[first] on:
--   e tail                    a stored event of the turn
--   w entry kind before after text   a message or reasoning opens, its event was just emitted, or its text starts afresh: the
--                             model call was made again; these bytes complete it
--   d entry text tail         more text of the open message: kept, and published as a delta
--   t entry text              more text of open reasoning: kept, never published
--   o field bytes             the bytes that complete an unstarted call or a running tool's result, if cut now
--   c field                   closed: its completion was just emitted
--   l text                    the turn's last assistant text, as JSON
--   q callback tail           a callback opens
--   b blob bytes              a body over the inline limit, referred to by an event of this write
local function keep_open(s, index, field, bytes)
  redis.call('HSET', s.open, field, string.format('%016.0f', s.n * 1000 + index % 1000) .. '\n' .. bytes)
end

local EFFECTS = {
  e = {1, function(s, i) emit(s, s.turn, ARGV[i]) end},
  w = {5, function(s, i)
    keep_open(s, i, ARGV[i], ARGV[i + 2] .. '\n' .. ARGV[i + 3])
    redis.call('SET', text_key(s, ARGV[i]), ARGV[i + 4])
    if ARGV[i + 1] == 'message' then redis.call('HSET', s.open, 'message', ARGV[i]) end
  end},
  d = {3, function(s, i)
    redis.call('APPEND', text_key(s, ARGV[i]), ARGV[i + 1])
    emit_delta(s, s.turn, ARGV[i + 2])
  end},
  t = {2, function(s, i) redis.call('APPEND', text_key(s, ARGV[i]), ARGV[i + 1]) end},
  o = {2, function(s, i) keep_open(s, i, ARGV[i], ARGV[i + 1]) end},
  c = {1, function(s, i)
    redis.call('HDEL', s.open, ARGV[i])
    if redis.call('HGET', s.open, 'message') == ARGV[i] then redis.call('HDEL', s.open, 'message') end
    redis.call('DEL', text_key(s, ARGV[i]))
  end},
  l = {1, function(s, i) redis.call('HSET', s.open, 'end', ARGV[i]) end},
  q = {2, function(s, i)
    local id = emit(s, s.turn, ARGV[i + 1])
    redis.call('HSET', s.asked, ARGV[i], id)
    s.opened[#s.opened + 1] = {ARGV[i], id}
    if s.expires then arm(now + s.expires, 'callback', s.sid, ARGV[i]) end
  end},
  b = {2, function(s, i) redis.call('HSET', base .. 'blobs:' .. s.sid, ARGV[i], ARGV[i + 1]) end},
}

local function apply(s, first, last)
  local blocked = redis.call('HLEN', s.asked) > 0
  local i = first
  s.opened = {}
  while i <= (last or #ARGV) do
    local effect = EFFECTS[ARGV[i]]
    effect[2](s, i + 1)
    i = i + 1 + effect[1]
  end
  if not blocked and redis.call('HLEN', s.asked) > 0 then emit_turn(s, 'blocked') end
  asked_above(s, s.opened)
end
