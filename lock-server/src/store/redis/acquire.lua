-- Grants the lock, queues the request, or refuses it.
--
-- ARGV[7] lock  [8] lease  [9] owner  [10] ttl, ms  [11] 1 to queue, 0 not to
-- ARGV[12] min_token, 0 for none  [13] metadata, a JSON text or empty  [14] most waiters
-- ARGV[15] how long this server counts as alive without another word, ms
-- ARGV[16] whom to take over from: "" nobody, "self" an earlier incarnation of the owner, or the
--          lease of the owner  [17] the incarnation that asks, or empty
-- ARGV[18] the session that the lease lives as long as, or empty
-- ARGV[19] most leases and waiting requests a session
--
-- Pre:   the lineage is the caller's.
-- Post:  GRANTED token remaining owner   this lease is the holder, now or since an earlier call
--        LOST reason                     this id has ended; nothing changed
--        CONFLICT owner                  this id is another owner's; nothing changed
--        QUEUED expires_in               it waits, at the end or at its old place
--        HELD ...                        another lease is live and the caller does not wait
--        LIMIT | EXHAUSTED               nothing changed
--        SESSION why id ...              the session does not allow it; nothing changed
--        REFUSED why ...HELD's           the lease is not the caller's to take over; nothing changed
local record = load(ARGV[7], trusted[3])
local lease, owner, takeover, incarnation = ARGV[8], ARGV[9], ARGV[16], ARGV[17]
local session = ARGV[18]
settle(record)

if record.holder and record.holder.lease == lease then
  if record.holder.owner ~= owner then
    return reply({ 'CONFLICT', record.holder.owner })
  end
  confirm(record)
  return reply(granted(record.holder))
end
local reason = ended_reason(record, lease)
if reason then
  return reply({ 'LOST', reason })
end
if session ~= '' then
  local known = session_of(session)
  local refusal = not_serving(session, known)
  if not refusal and known.owner ~= owner then
    refusal = { 'SESSION', 'other-owner', session, known.owner }
  end
  if not refusal and redis.call('SCARD', prefix .. 'b:' .. session) >= tonumber(ARGV[19])
    and redis.call('HEXISTS', prefix .. 'w:' .. ARGV[7], lease) == 0 then
    refusal = { 'SESSION', 'full', session }
  end
  if refusal then
    return reply(refusal)
  end
end

-- Whether this incarnation was itself taken over, by what the record remembers.
local function was_taken_over()
  local fields = '[^\t\n]*\t[^\t\n]*\t([^\t\n]*)\t[^\t\n]*\t[^\t\n]*\t([^\t\n]*)\t([^\n]*)\n'
  for how, whose, life in string.gmatch(record.ended, fields) do
    if how == 'superseded' and whose == owner and life == incarnation then
      return true
    end
  end
  return false
end

-- The same as rules/takeover.rs: whether the live lease is ended for this request, or why not.
local function judge_takeover(holder)
  local waits = ARGV[11] ~= '0'
  if takeover == '' or (takeover ~= 'self' and holder.lease ~= takeover) then
    return false
  elseif takeover ~= 'self' then
    return holder.owner == owner, 'other-owner'
  elseif holder.owner ~= owner then
    return false, not waits and 'other-owner'
  elseif was_taken_over() then
    return false, 'was-taken-over'
  elseif holder.incarnation == '' or incarnation == '' then
    return false, not waits and 'no-incarnation'
  end
  return holder.incarnation ~= incarnation
end

local supersedes, refused
if record.holder then
  supersedes, refused = judge_takeover(record.holder)
  if refused and not supersedes then
    local answer = held(record)
    answer[1] = refused
    return reply({ 'REFUSED', unpack(answer) })
  end
end
if supersedes or not record.holder then
  local token = mint(tonumber(ARGV[12]))
  if not token then
    return reply({ 'EXHAUSTED' })
  end
  if supersedes then
    close(record, 'superseded')
    dequeue(record, lease)
  end
  record.holder = holder_of(lease, token, tonumber(ARGV[10]), owner, incarnation, session,
    ARGV[13], record.lock)
  save(record)
  return reply(granted(record.holder))
end
if ARGV[11] == '0' then
  return reply(held(record))
end

local queue, waiters = prefix .. 'q:' .. ARGV[7], prefix .. 'w:' .. ARGV[7]
local earlier = redis.call('HGET', waiters, lease)
if earlier then
  local earlier_owner = string.match(earlier, '^[^\t]*\t[^\t]*\t[^\t]*\t[^\t]*\t([^\t]*)')
  if earlier_owner ~= owner then
    return reply({ 'CONFLICT', earlier_owner })
  end
elseif redis.call('ZCARD', queue) >= tonumber(ARGV[14]) then
  return reply({ 'LIMIT' })
else
  redis.call('ZADD', queue, int(redis.call('INCR', prefix .. 'seq')), lease)
  if not record.waiting then
    record.waiting = true
    save(record)
  end
end
local since = earlier and string.match(earlier, '^[^\t]*\t[^\t]*\t[^\t]*\t([^\t]*)') or int(now)
redis.call('HSET', waiters, lease,
  table.concat({ me, ARGV[10], ARGV[12], since, owner, incarnation, session, ARGV[13] }, '\t'))
bond(session, 'w\t' .. ARGV[7] .. '\t' .. lease)
redis.call('PEXPIRE', queue, 600000)
redis.call('PEXPIRE', waiters, 600000)
redis.call('SET', prefix .. 's:' .. me, '1', 'PX', ARGV[15])
return reply({ 'QUEUED', int(math.max((record.holder.claim or record.holder.expires) - now, 0)) })
