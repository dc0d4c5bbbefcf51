-- What bump.lua and advance.lua begin with: into a newer view, or why not.
--
-- KEYS   meta
-- ARGV   [1] cluster [2] n [3] the new view [4] its members
--
-- Post:  NOMEMBER | OTHER cluster n | NOTREADY       as in common.lua; nothing changed
--        VIEW view members           its view is as new, with other members, or newer; nothing changed
--        STRANGER id                 it is not one of the members; nothing changed
local meta = redis.call('HMGET', KEYS[1], 'cluster', 'n', 'state', 'view', 'members', 'node')
if not meta[1] or meta[1] == '' then
  return { 'NOMEMBER' }
elseif meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] then
  return { 'OTHER', meta[1], meta[2] }
end

local function move(may)
  local ahead = tonumber(ARGV[3]) - tonumber(meta[4])
  if not may[meta[3]] then
    return { 'NOTREADY' }
  elseif ahead < 0 or (ahead == 0 and meta[5] ~= ARGV[4]) then
    return { 'VIEW', meta[4], meta[5] }
  elseif not string.find(',' .. ARGV[4] .. ',', ',' .. meta[6] .. ',', 1, true) then
    return { 'STRANGER', meta[6] }
  elseif ahead > 0 then
    redis.call('HSET', KEYS[1], 'view', ARGV[3], 'members', ARGV[4])
  end
end
