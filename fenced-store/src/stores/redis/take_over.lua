
-- Makes a guard the leader of these lanes: from here no other leader with a lower token can commit.
--
-- KEYS[1], [2], [4]  as in fence.lua   KEYS[3], [5]  hash: open lane -> lowest token of its writes,
-- and ' conditional' if all of them are; "#" -> the id of the state
-- KEYS[6]  hash: token, lease, ttl, known, batch, floor; the leader
-- ARGV[1]  the id of the state that the caller verified
-- ARGV[2]  the leader's token   ARGV[3]  its lease   ARGV[4]  its time to live, in milliseconds
--
-- "known" is 1 if a leader has served before, and the list of open lanes has its "#": otherwise
-- Redis may have been emptied, or the list deleted, and lanes may be open of which it knows nothing.
-- A leader that has committed has waited for those. "ttl" is the longest of all leaders so far,
-- because a lane stays open until it is closed. "floor" is that of the state when the marks were
-- read.
--
-- Returns {'leads', known, ttl, lock, token, mark, lock, …} with the open lanes; 'changed' in place
-- of a mark that another program changed. Or {'unverified'}, or {'deposed', token}: a later leader
-- has this token. The same call again changes nothing.
local state = redis.pcall('HMGET', KEYS[4], 'id', 'phase', 'floor')
if state.err or state[1] ~= ARGV[1] or state[2] ~= 'open' then return {'unverified'} end
local lead = redis.call('HMGET', KEYS[6], 'token', 'lease', 'ttl', 'known', 'batch')
local lanes = redis.call('HGETALL', KEYS[5])
local before = tonumber(lead[1] or '0')
if before > tonumber(ARGV[2]) or (before == tonumber(ARGV[2]) and lead[2] ~= ARGV[3]) then
  return {'deposed', lead[1]}
end
local known, ttl = lead[4], lead[3]
if before < tonumber(ARGV[2]) then
  local has_served = lead[4] == '1' or tonumber(lead[5] or '0') > 0
  known = (has_served and redis.call('HGET', KEYS[5], '#') == ARGV[1]) and '1' or '0'
  if tonumber(ttl or '0') < tonumber(ARGV[4]) then ttl = ARGV[4] end
  redis.call(
    'HSET', KEYS[6], 'token', ARGV[2], 'lease', ARGV[3], 'ttl', ttl, 'known', known, 'batch', '0',
    'floor', state[3] or '0')
  redis.call('HSET', KEYS[5], '#', ARGV[1])
end
local reply = {'leads', known, ttl}
for i = 1, #lanes, 2 do
  if lanes[i] ~= '#' then
    reply[#reply + 1] = lanes[i]
    reply[#reply + 1] = lanes[i + 1]
    local mark, is_whole = mark_of(lanes[i], ARGV[1])
    reply[#reply + 1] = is_whole and (mark or '') or 'changed'
  end
end
return reply
