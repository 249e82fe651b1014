-- contents: a message's entries among ARGV, from one index to another: completed tails, each with its blob before it if it has one,
-- and notices, each the word 'note' and a tail.
local function add_contents(s, from, to)
  local i = from
  while i <= to do
    if ARGV[i] == 'blob' then
      redis.call('HSET', base .. 'blobs:' .. s.sid, ARGV[i + 1], ARGV[i + 2])
      i = i + 3
    end
    if ARGV[i] == 'note' then
      emit(s, s.turn, ARGV[i + 1])
      i = i + 2
    else
      emit_entry(s, s.turn, ARGV[i])
      i = i + 1
    end
  end
end
