
-- Changes marks and open lanes in one step, for the leader alone.
--
-- KEYS as in take_over.lua
-- ARGV[1]  the id of the state that the leader took over   ARGV[2]  its token
-- ARGV[3]  the batch's number, from 1 and rising; 0 only confirms that the caller leads
-- ARGV[4], …  lock, mark's token or '', mark's lease or '', open lane or '' to close it
--
-- A batch whose number is not above the last one is a retry, or a duplicate that comes late: it has
-- no effect. A later change of its lanes would otherwise be undone.
--
-- Returns {'done'}, {'unverified'}, or {'deposed', token}: another guard leads, the floor of the
-- state was raised since the take-over, so that the leader's marks are too low, or the list of open
-- lanes was lost.
local state = redis.pcall('HMGET', KEYS[4], 'id', 'phase', 'floor', 'highest')
if state.err or state[1] ~= ARGV[1] or state[2] ~= 'open' then return {'unverified'} end
local lead = redis.call('HMGET', KEYS[6], 'token', 'batch', 'floor')
if lead[1] ~= ARGV[2] then return {'deposed', lead[1] or '0'} end
if lead[3] ~= (state[3] or '0') or redis.call('HGET', KEYS[5], '#') ~= ARGV[1] then
  return {'deposed', '0'}
end
if tonumber(ARGV[3]) <= tonumber(lead[2]) then return {'done'} end
local highest = state[4] or '0'
for i = 4, #ARGV, 4 do
  local lock, token = ARGV[i], ARGV[i + 1]
  if token ~= '' then
    local mark, is_whole = mark_of(lock, ARGV[1])
    if not is_whole then return {'unverified'} end
    local held = '0'
    if mark then held = parse(mark) end
    if not held then
      return redis.error_reply('FENCE the mark of lock ' .. lock .. ' cannot be read')
    end
    -- A second check, independent of the one that decided.
    if tonumber(held) >= tonumber(token) then
      return redis.error_reply('FENCE refusing to lower the mark of lock ' .. lock .. ' from ' .. held)
    end
    if tonumber(token) > tonumber(highest) then highest = token end
  end
end
redis.call('HSET', KEYS[6], 'batch', ARGV[3])
for i = 4, #ARGV, 4 do
  local lock, token, lease, open = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  if token ~= '' then
    write_mark(lock, token, lease, '')
    redis.call('ZADD', KEYS[2], 0, lock)
  end
  if open ~= '' then
    redis.call('HSET', KEYS[5], lock, open)
  else
    redis.call('HDEL', KEYS[5], lock)
  end
end
if highest ~= (state[4] or '0') then redis.call('HSET', KEYS[4], 'highest', highest) end
return {'done'}
