-- start: a message starts a turn, joins the active one, or finds the turn its key has already started.
--
-- KEYS    session
-- ARGV    sid nonce key digest join turn preview ...contents
--         key '' = none; join '1' = a message may join the active turn; contents: completed tails, the user's entry first,
--         then each context message, then notices ('note' tail); a tail may be a blob reference, in which case 'blob' id bytes
--         stand before it
-- RETURN  started turn first | joined turn | receipt turn started | busy turn | conflict | terminated | child | missing
-- EVENTS  entryAdded entryCompleted turnStarted sessionUpdated(running), then contexts and notices, of the first turn what was to be
--         said of the session's opening too, then a notice if no worker serves
--@include session emit enqueue once contents turn
local s = load_session(sid)
if not s then return {'missing'} end
if s.ancestors then return {'child'} end
local before = said_before(nonce)
if before then return before end
local receipts = base .. 'receipts:' .. sid
if key ~= '' then
  local receipt = redis.call('HGET', receipts, key)
  if receipt then
    local was, started, of = string.match(receipt, '^(%S+) (%S+) (%S+)$')
    if of == digest and (join == '1' or started == '1') then return {'receipt', was, started} end
    return {s.status == 'terminated' and 'terminated' or 'conflict'}
  end
end
if s.status == 'terminated' then return {'terminated'} end
local active = s.turn ~= '' and s.turn or nil
if active and join ~= '1' then return {'busy', active} end

if active then
  add_contents(s, contents, #ARGV)
  flush(s)
  if s.job == 'running' then hint(s, 'news') end
  if key ~= '' then redis.call('HSET', receipts, key, active .. ' 0 ' .. digest) end
  return say(nonce, 'joined', active)
end

start_turn(s, turn, preview, contents)
if key ~= '' then redis.call('HSET', receipts, key, turn .. ' 1 ' .. digest) end
return say(nonce, 'started', turn, s.first)
