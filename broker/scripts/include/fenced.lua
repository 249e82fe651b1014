-- fenced: who may write, and whether this write was made before. Returns words to answer with, or nil to go on.
-- A fence is one run's token. `op` numbers its writes: last + 1 is applied, the last again gets its stored answer.
-- `seen` is the id of the last stored event that the run has folded: a log without it has lost writes, and numbers them otherwise
-- (after a failover there and back, `op` may be another write's). '' = whatever the log holds, the turn ends: only an end before
-- is then the same write.
local function refuse(s, fence, op, seen)
  if s then s.run = mark_of(fence) end
  if not s or s.fence ~= fence or fence == '' then return {'superseded'} end
  op = tonumber(op)
  local result = s.result or ''
  local lost = seen ~= '0-0' and seen ~= '' and #redis.call('XRANGE', s.log, seen, seen) == 0
  local same = not lost and (seen ~= '' or string.sub(result, 1, 9) == 'finished ')
  if op == s.op and same then
    local words = {}
    for word in string.gmatch(result, '%S+') do words[#words + 1] = word end
    return words
  end
  if s.turn == '' or s.job ~= 'running' then return {'superseded'} end
  if op < s.op and same then return {'late'} end
  if op ~= s.op + 1 or lost then return {'gap'} end
  return nil
end

-- Keeps this write's number and answer beside its effects.
local function accept(s, op, ...)
  local words = {...}
  redis.call('HSET', s.key, 'op', op, 'result', table.concat(words, ' '), 'written', int(now))
  return words
end
