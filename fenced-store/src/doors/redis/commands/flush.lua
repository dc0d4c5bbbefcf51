-- Empties a database, or all of them, but for Fencepost's own keys. Sent in place of FLUSHDB and
-- FLUSHALL. An error rolls back nothing, so restoring every own key is tried in every database
-- before the first is emptied.
--
-- ARGV[1]  "one" for the database of the connection, "all" for every one
-- ARGV[2]  ASYNC or SYNC, if the client has chosen
local function restore(key)
  redis.call('RESTORE', key.name, key.expires, key.value, 'REPLACE', 'ABSTTL')
end

local function own_keys()
  local own = {}
  for _, name in ipairs(redis.call('KEYS', '*{fence:*')) do
    -- Same test as is_own_name: the first brace begins {fence:.
    local value = string.find(name, '^[^{]*{fence:') and redis.call('DUMP', name)
    if value then
      local expires = math.max(redis.call('PEXPIRETIME', name), 0)
      own[#own + 1] = {name = name, expires = string.format('%.0f', expires), value = value}
      restore(own[#own])
    end
  end
  return own
end

local function empty(own)
  redis.call('FLUSHDB', unpack(ARGV, 2))
  for _, key in ipairs(own) do
    restore(key)
  end
end

if ARGV[1] == 'one' then
  empty(own_keys())
  return redis.status_reply('OK')
end
local databases = {}
while true do
  local selected = redis.pcall('SELECT', #databases)
  if selected.err then
    if #databases == 0 or not string.find(selected.err, 'out of range') then
      return selected
    end
    break
  end
  databases[#databases + 1] = own_keys()
end
for index, own in ipairs(databases) do
  redis.call('SELECT', index - 1)
  empty(own)
end
return redis.status_reply('OK')
