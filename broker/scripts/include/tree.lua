-- tree: what a subagent's session tells the sessions above it. `asked` of each holds the callbacks that are open at or below it:
-- its own by their ids, a descendant's by `<position here> <session> <id there>`. A position that no event of its own has is
-- counted like a delta's, and a nudge is published with it, so that whoever waits here looks.
local function is_own(asked) return string.find(asked, ' ', 1, true) == nil end

local function nudge(s)
  local k = redis.call('HINCRBY', s.key, 'k', 1)
  redis.call('PUBLISH', channel(s), '{"n":' .. int(s.n) .. ',"ms":' .. int(s.ms) .. ',"k":' .. int(k) .. ',"d":{"type":"nudge"}}')
  return last_id(s) .. '.' .. int(k)
end

local function each_above(s, visit)
  for sid in string.gmatch(s.ancestors or '', '%S+') do
    local above = load_session(sid)
    if above and above.turn ~= '' then visit(above) end
  end
end

-- `opened`: {callback, id} of each that opened in `s` just now.
local function asked_above(s, opened)
  if #opened == 0 then return end
  each_above(s, function(above)
    if redis.call('HLEN', above.asked) == 0 then
      emit_turn(above, 'blocked')
      flush(above)
    end
    for _, pair in ipairs(opened) do
      local other = redis.call('HGET', above.asked, pair[1])
      local place = nudge(above) .. ' ' .. s.sid .. ' ' .. pair[2]
      redis.call('HSET', above.asked, pair[1], other and (other .. '\n' .. place) or place)
    end
  end)
end

-- `callbacks` were open in `s` and are no more.
local function resolved_above(s, callbacks)
  if #callbacks == 0 then return end
  each_above(s, function(above)
    local gone = 0
    for _, callback in ipairs(callbacks) do gone = gone + redis.call('HDEL', above.asked, callback) end
    if gone > 0 then
      if redis.call('HLEN', above.asked) == 0 then
        emit_turn(above, 'running')
        flush(above)
      end
      nudge(above)
    end
  end)
end

-- The spawn call in the parent gets its result: `report` is its completed tail, `cut_report` the one that was kept for a turn that is
-- cut. A parent whose turn has ended gets nothing.
local function report_up(s, report)
  if not s.ancestors then return end
  local kept = redis.call('HMGET', s.key, 'parent', 'parent_turn', 'spawn_entry', 'cut_report')
  redis.call('SREM', base .. 'spawned:' .. kept[1], s.sid)
  local parent = load_session(kept[1])
  if not parent or parent.turn ~= kept[2] then return end
  if redis.call('HDEL', parent.open, kept[3]) == 0 then return end
  emit(parent, parent.turn, report or kept[4])
  flush(parent)
  wake_turn(parent)
end
