-- once: a client's command carries a nonce, so that its retry after a lost reply gets the first try's answer.
local function once_key(nonce) return base .. 'nonce:' .. nonce end

local function said_before(nonce)
  local words = redis.call('GET', once_key(nonce))
  if not words then return nil end
  local result = {}
  for word in string.gmatch(words, '%S+') do result[#result + 1] = word end
  return result
end

local function say(nonce, ...)
  local result = {...}
  redis.call('SET', once_key(nonce), table.concat(result, ' '), 'PX', 600000)
  return result
end
