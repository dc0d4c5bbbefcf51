-- Asks which of the rights that a lock server needs the caller's user lacks; changes nothing, and
-- names no key in KEYS, so that it runs where the user may touch none.
--
-- ARGV[1] the prefix of the namespace's keys  ARGV[2] the prefix of its channels
-- ARGV[3...] commands, as in "get" or "script|load"; one with a key is asked for as "get key"
--
-- Post: what is missing, as ACL SETUSER takes it
if not redis.acl_check_cmd then
  -- Before Redis 7.0, which is refused for its version.
  return {}
end
local missing = {}
local key, channel = ARGV[1] .. 'token', ARGV[2] .. 'x'
-- EVAL itself is allowed, or this would not run: what it is refused for is the key.
local has_keys = redis.acl_check_cmd('EVAL', '', '1', key)
if not has_keys then
  missing[1] = '~' .. ARGV[1] .. '*'
end
for at = 3, #ARGV do
  local name, keyed = string.match(ARGV[at], '^(%S+)( ?)')
  local words = {}
  for word in string.gmatch(name, '[^|]+') do
    words[#words + 1] = word
  end
  if name == 'publish' or name == 'subscribe' then
    words[#words + 1] = channel
  elseif keyed ~= '' then
    words[#words + 1] = key
  end
  -- A command on keys says nothing of itself where the keys are refused.
  if (keyed == '' or has_keys) and not redis.acl_check_cmd(unpack(words)) then
    missing[#missing + 1] = '+' .. name
    if name == 'publish' or name == 'subscribe' then
      missing[#missing + 1] = '&' .. ARGV[2] .. '*'
    end
  end
end
return missing
