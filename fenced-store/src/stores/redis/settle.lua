
-- Removes registrations of ended connections, and finishes a sealing when no lower one is left.
-- Idempotent; any guard may run it at any time. It trusts the caller in one thing, that the named
-- connections do not exist any more. It compares no token.
-- ARGV[5]…  the fields of KEYS[3] that are gone
-- Returns the fields that have to be ended before anything is admitted. Empty: the lock is settled,
-- or the state is opening, and then every connection is ended.
local mark = redis.call('HGET', KEYS[1], ARGV[1])
local held, owner, flag
if mark then
  held, owner, flag = parse(mark)
  if not held then
    return redis.error_reply('FENCE the mark of lock ' .. ARGV[1] .. ' cannot be read')
  end
  if flag ~= '' and not has_registrations() then
    lose_registrations(ARGV[1], held, owner)
    return {}
  end
end
for i = 5, #ARGV do redis.call('HDEL', KEYS[3], ARGV[i]) end
if not mark or flag == '' then return {} end
local lower, others = registered_below(held)
local now = (#lower > 0 and 's') or (others > 0 and 'c') or ''
if now ~= flag then write_mark(ARGV[1], held, owner, now) end
return lower
