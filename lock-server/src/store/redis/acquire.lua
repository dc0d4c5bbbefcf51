-- Grants the lock, queues the request, or refuses it.
--
-- ARGV[8] lock  [9] lease  [10] owner  [11] ttl, ms  [12] 1 to queue, 0 not to
-- ARGV[13] min_token, 0 for none  [14] metadata, a JSON text or empty  [15] most waiters
-- ARGV[16] how long this server counts as alive without another word, ms
-- ARGV[17] whom to take over from: "" nobody, "self" an earlier incarnation of the owner, or the
--          lease of the owner  [18] the incarnation that asks, or empty
-- ARGV[19] the session that the lease lives as long as, or empty
-- ARGV[20] most leases and waiting requests a session  [21] mode  [22] lock-delay, ms
-- ARGV[23] the highest token that enough replicas are known to have, where a grant is acknowledged only
--          after they have it; empty where it is acknowledged at once
--
-- Pre:   the lineage is the caller's.
-- Post:  GRANTED token remaining owner mode   this lease is live, now or since an earlier call
--        UNACKNOWLEDGED token            it lives, and replicas may lack it; nothing changed
--        LOST reason why                 this id has ended; nothing changed
--        CONFLICT owner                  this id is another request's; nothing changed
--        KIND kind                       the lock is in use as another kind; nothing changed
--        QUEUED expires_in paused        it waits, at the end or at its old place
--        HELD ... | FREE                 it has to wait and does not
--        PAUSED left                     nobody is granted a lock for so long, and it does not wait
--        LIMIT | EXHAUSTED               nothing changed
--        SESSION why id ...              the session does not allow it; nothing changed
--        REFUSED why ...HELD's           the lease is not the caller's to take over; nothing changed
local lock, lease, owner, takeover, incarnation = ARGV[8], ARGV[9], ARGV[10], ARGV[17], ARGV[18]
local session, mode, waits = ARGV[19], ARGV[21], ARGV[12] ~= '0'
local record = record_of(lock, trusted[3])
hand_over()

local known = find(record, lease)
if known then
  if known.owner ~= owner then
    return reply({ 'CONFLICT', known.owner })
  end
  if not is_unclaimed(known) and is_unacknowledged(known, ARGV[23]) then
    return reply({ 'UNACKNOWLEDGED', known.token })
  end
  claim(record, known, ARGV[23])
  return reply(granted(record, known))
end
local reason, why = ended_reason(record, lease)
if reason then
  return reply({ 'LOST', reason, why })
end
local earlier = record.waiting and queues().waiter_of(lock, lease)
if earlier and (earlier.owner ~= owner or earlier.group ~= '') then
  return reply({ 'CONFLICT', earlier.owner })
end
if not earlier and record.kind ~= '' and record.kind ~= kind_of(mode) then
  return reply({ 'KIND', record.kind })
end
local refusal = session ~= '' and bonds().refuses(session, owner, earlier and 0 or 1, tonumber(ARGV[20]))
if refusal then
  return reply(refusal)
end

local request = {
  lease = lease, minimum = tonumber(ARGV[13]), ttl = tonumber(ARGV[11]), delay = tonumber(ARGV[22]),
  owner = owner, incarnation = incarnation, session = session, metadata = ARGV[14], mode = mode,
}
local superseded
if takeover ~= '' and mode == 'x' and record.mode == 'x' and record.closed == 0 then
  -- Whether this incarnation was itself taken over, by what the record remembers.
  local function was_taken_over()
    local fields = '[^\t\n]*\t[^\t\n]*\t([^\t\n]*)\t[^\t\n]*\t[^\t\n]*\t([^\t\n]*)\t([^\t\n]*)\t[^\n]*\n'
    for how, whose, life in string.gmatch(record.ended, fields) do
      if how == 'superseded' and whose == owner and life == incarnation then
        return true
      end
    end
    return false
  end

  -- The same as rules/takeover.rs: whether the live lease is ended for this request, or why not.
  local function judge_takeover(holder)
    if takeover ~= 'self' and holder.key ~= takeover then
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

  local holder
  for _, one in ipairs(all(record)) do
    holder = not one.gone and one or holder
  end
  local yes, refused = judge_takeover(holder)
  if refused and not yes then
    local answer = queues().held(record)
    answer[1] = refused
    return reply({ 'REFUSED', unpack(answer) })
  end
  superseded = yes and holder
end
local has_room = superseded or (not earlier and not record.waiting and admits(record, mode))
if has_room and not is_paused() then
  if math.max(counter, request.minimum) >= MAX_TOKEN then
    return reply({ 'EXHAUSTED' })
  end
  if superseded then
    close(record, superseded, 'superseded')
    if earlier then
      queues().dequeue(lock, lease)
    end
  end
  -- Until it is shown to have arrived, this server may take it back.
  request.server = ARGV[23] ~= '' and me or nil
  return reply(granted(record, grant(record, request)))
end
if not waits then
  return reply(has_room and queues().paused() or queues().held(record))
end

local place
if not earlier then
  if redis.call('ZCARD', prefix .. 'q:' .. lock) >= tonumber(ARGV[15]) then
    return reply({ 'LIMIT' })
  end
  place = redis.call('INCR', prefix .. 'seq')
end
request.since, request.group = int(now), ''
-- A repeat waits as it was first asked: another session, say, would not know of it.
queues().queue_up(record, earlier or request, place)
redis.call('SET', prefix .. 's:' .. me, '1', 'PX', ARGV[16])
return reply({ 'QUEUED', int(queues().look_in(record)), int(paused_ms()) })
