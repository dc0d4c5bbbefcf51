-- Grants several locks in one step, queues the request at all of them, or refuses it.
--
-- ARGV[8] the first lock  [9] lease  [10] owner  [11] ttl, ms  [12] 1 to queue, 0 not to
-- ARGV[13] metadata, a JSON text or empty  [14] most waiters  [15] how long this server counts as
--          alive without another word, ms  [16] the incarnation that asks, or empty
-- ARGV[17] the session that the leases live as long as, or empty  [18] most leases and waiting
--          requests a session  [19] the lock under which this server knows the waiter
-- ARGV[20] as ARGV[23] of acquire.lua
-- ARGV[21...] four a lock, each lock once: name  mode  lock-delay, ms  min_token, 0 for none
--
-- Pre:   the lineage is the caller's.
-- Post:  ALL token remaining owner mode ...   its leases are live, now or since an earlier call
--        UNACKNOWLEDGED token      they live, and replicas may lack them; nothing changed
--        QUEUED expires_in paused  it waits, at the end of every queue or at its old places
--        PART lock ...           that lock refuses, as acquire.lua says; nothing changed
local lease, owner, session, waits = ARGV[9], ARGV[10], ARGV[17], ARGV[12] ~= '0'
local parts, keys, names = {}, {}, { ARGV[19] }
for at = 21, #ARGV, 4 do
  local part = {
    lock = ARGV[at], lease = lease, mode = ARGV[at + 1], delay = tonumber(ARGV[at + 2]),
    minimum = tonumber(ARGV[at + 3]), ttl = tonumber(ARGV[11]), owner = owner,
    incarnation = ARGV[16], session = session, metadata = ARGV[13],
  }
  parts[#parts + 1], names[#names + 1] = part, part.lock
  keys[#keys + 1] = prefix .. 'l:' .. part.lock
end
for at, raw in ipairs(redis.call('MGET', unpack(keys))) do
  parts[at].record = record_of(parts[at].lock, raw)
end
hand_over()

local function refuse(part, answer)
  return reply({ 'PART', part.lock, unpack(answer) })
end

local live, waiting, missing = 0, 0, nil
for _, part in ipairs(parts) do
  local holder = find(part.record, lease)
  local reason, why = ended_reason(part.record, lease)
  if reason then
    return refuse(part, { 'LOST', reason, why })
  elseif holder and holder.owner ~= owner then
    return refuse(part, { 'CONFLICT', holder.owner })
  end
  live = live + (holder and 1 or 0)
  missing = missing or (not holder and part) or nil
end
if live == #parts then
  local answer, last = { 'ALL' }, nil
  for _, part in ipairs(parts) do
    local holder = find(part.record, lease)
    if not is_unclaimed(holder) and is_unacknowledged(holder, ARGV[20]) then
      last = math.max(last or 0, tonumber(holder.token))
    end
  end
  if last then
    return reply({ 'UNACKNOWLEDGED', int(last) })
  end
  for _, part in ipairs(parts) do
    local holder = find(part.record, lease)
    claim(part.record, holder, ARGV[20])
    for _, field in ipairs({ holder.token, remaining(holder), owner, part.record.mode }) do
      answer[#answer + 1] = field
    end
  end
  return reply(answer)
elseif live > 0 then
  -- What it had here has ended so long ago that nothing is remembered of it, or it asks for another
  -- set of locks than before. Granting the rest would be a second grant under one id.
  return refuse(missing, { 'LOST', 'superseded', '' })
end
for _, part in ipairs(parts) do
  local earlier = part.record.waiting and queues().waiter_of(part.lock, lease)
  -- Another set of locks, or in another order, is another request.
  if earlier and (earlier.owner ~= owner or earlier.group ~= table.concat(names, ',')) then
    return refuse(part, { 'CONFLICT', earlier.owner })
  end
  part.earlier, waiting = earlier, waiting + (earlier and 1 or 0)
end
for _, part in ipairs(parts) do
  if waiting == 0 and part.record.kind ~= '' and part.record.kind ~= kind_of(part.mode) then
    return refuse(part, { 'KIND', part.record.kind })
  end
end
local refusal = session ~= ''
  and bonds().refuses(session, owner, waiting > 0 and 0 or #parts, tonumber(ARGV[18]))
if refusal then
  return refuse(parts[1], refusal)
end

local blocked
for _, part in ipairs(parts) do
  blocked = blocked or ((part.record.waiting or not admits(part.record, part.mode)) and part) or nil
end
if not blocked and not is_paused() then
  local enough, at = tokens_last(parts)
  if not enough then
    return refuse(parts[at], { 'EXHAUSTED' })
  end
  local answer = { 'ALL' }
  for _, part in ipairs(parts) do
    -- Until it is shown to have arrived, this server may take it back.
    part.server = ARGV[20] ~= '' and me or nil
    local holder = grant(part.record, part)
    for _, field in ipairs({ holder.token, remaining(holder), owner, part.record.mode }) do
      answer[#answer + 1] = field
    end
  end
  return reply(answer)
end
if not waits and not blocked then
  return refuse(parts[1], queues().paused())
elseif not waits then
  return refuse(blocked, queues().held(blocked.record))
end

local place
if waiting == 0 then
  for _, part in ipairs(parts) do
    if redis.call('ZCARD', prefix .. 'q:' .. part.lock) >= tonumber(ARGV[14]) then
      return refuse(part, { 'LIMIT' })
    end
  end
  place = redis.call('INCR', prefix .. 'seq')
end
local look = 600000
for _, part in ipairs(parts) do
  local waiter = part.earlier or part
  if not part.earlier then
    part.since, part.group = int(now), table.concat(names, ',')
  end
  queues().queue_up(part.record, waiter, place)
  look = math.min(look, queues().look_in(part.record))
end
redis.call('SET', prefix .. 's:' .. me, '1', 'PX', ARGV[15])
return reply({ 'QUEUED', int(look), int(paused_ms()) })
