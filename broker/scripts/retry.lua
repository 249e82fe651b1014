-- retry: a turn leaves the dead letters, and a new one starts with what people had sent into it. Safe to repeat.
--
-- KEYS    session
-- ARGV    sid dead turn preview ...contents
--         dead: the turn in the dead letters; turn: the new one's id; contents as in start
-- RETURN  started turn | busy turn | unknown: it is not in the dead letters | told: it is a subagent's | terminated | missing
-- EVENTS  as those of a turn that start starts
--@include session emit enqueue contents turn
local s = load_session(sid)
if not s then return {'missing'} end
local before = redis.call('HGET', s.key, 'retried:' .. dead)
if before then return {'started', before} end
if not redis.call('ZSCORE', base .. 'dead', sid .. ' ' .. dead) then return {'unknown'} end
if s.ancestors then return {'told'} end
if s.status == 'terminated' then return {'terminated'} end
if s.turn ~= '' then return {'busy', s.turn} end
start_turn(s, turn, preview, contents)
redis.call('HSET', s.key, 'retried:' .. dead, turn)
redis.call('ZREM', base .. 'dead', sid .. ' ' .. dead)
return {'started', turn}
