-- Empties a database, or all of them, but for Fencepost's own keys. Sent in place of FLUSHDB and
-- FLUSHALL.
--
-- ARGV[1]  "one" for the database of the connection, "all" for every one
-- ARGV[2]  ASYNC or SYNC, where the client has said so
local function empty()
  local own = {}
  for _, key in ipairs(redis.call('KEYS', '*{fence:*')) do
    -- As is_own_name: the first brace begins {fence:.
    local value = string.find(key, '^[^{]*{fence:') and redis.call('DUMP', key)
    if value then
      own[#own + 1] = {key, math.max(redis.call('PEXPIRETIME', key), 0), value}
    end
  end
  redis.call('FLUSHDB', unpack(ARGV, 2))
  for _, kept in ipairs(own) do
    redis.call('RESTORE', kept[1], string.format('%.0f', kept[2]), kept[3], 'ABSTTL')
  end
end

if ARGV[1] == 'one' then
  empty()
else
  local db = 0
  while not redis.pcall('SELECT', db).err do
    empty()
    db = db + 1
  end
end
return redis.status_reply('OK')
