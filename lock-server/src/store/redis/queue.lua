-- Who waits, and how a lock passes on to them in the step that makes room.
--
-- A request for several locks stands in each of their queues, at the same place, which was taken in
-- one step: so any two requests stand in the same order wherever they meet. Its entry in every
-- w:<lock> names all of its locks, in the order in which they are granted, after the one that its
-- server knows it by.
local handed = {}
-- How many waiters one script looks at; the sweep goes on where more had to be passed over.
local budget = 4000
local made_queues

local function make_queues()
  local queues = {}

  -- The reply to a read of a key of a queue. Where another program has put something else there, the
  -- queue is lost: waiters ask again when the next lineage begins.
  local function read(key, lock, answer)
    if type(answer) == 'table' and answer.err then
      redis.call('DEL', key)
      not_as_left('the queue of lock ' .. lock .. ' is gone')
    end
    return answer
  end

  -- What an id has asked for that waits, or nil.
  local function waiter_of(lock, lease)
    local key = prefix .. 'w:' .. lock
    local raw = read(key, lock, redis.pcall('HGET', key, lease))
    local server, ttl, minimum, since, mode, delay, group, owner, incarnation, session, metadata =
      string.match(raw or '', '^' .. string.rep('([^\t]*)\t', 10) .. '(.*)$')
    return server and {
      lock = lock, lease = lease, server = server, ttl = tonumber(ttl), minimum = tonumber(minimum),
      since = since, mode = mode, delay = tonumber(delay), group = group, owner = owner,
      incarnation = incarnation, session = session, metadata = metadata,
    } or nil
  end
  queues.waiter_of = waiter_of

  -- The locks that a waiter asks for.
  local function wished(waiter)
    if waiter.group == '' then
      return { waiter.lock }
    end
    local locks = {}
    for lock in string.gmatch(waiter.group, ',([^,]+)') do
      locks[#locks + 1] = lock
    end
    return locks
  end
  queues.wished = wished

  -- Writes a waiter; with a place it is a new one, behind everybody.
  function queues.queue_up(record, waiter, place)
    local lock = record.lock
    local queue, waiters = prefix .. 'q:' .. lock, prefix .. 'w:' .. lock
    if place then
      redis.call('ZADD', queue, int(place), waiter.lease)
      bonds().bond(waiter.session, 'w', lock, waiter.lease)
      -- Where nobody holds the lock, the record has to outlast the queue.
      if not record.waiting or record.count == 0 then
        record.waiting, record.kind, record.changed = true, kind_of(waiter.mode), true
      end
    end
    redis.call('HSET', waiters, waiter.lease, table.concat({
      me, int(waiter.ttl), int(waiter.minimum), waiter.since, waiter.mode, int(waiter.delay),
      waiter.group, waiter.owner, waiter.incarnation, waiter.session, waiter.metadata,
    }, '\t'))
    redis.call('PEXPIRE', queue, 600000)
    redis.call('PEXPIRE', waiters, 600000)
    if is_paused() then
      record.look_at = paused_until
    end
  end

  -- Takes a waiter out of all its queues without a word.
  local function leave(waiter)
    for _, lock in ipairs(wished(waiter)) do
      bonds().unbond(waiter.session, 'w', lock, waiter.lease)
      redis.call('ZREM', prefix .. 'q:' .. lock, waiter.lease)
      redis.call('HDEL', prefix .. 'w:' .. lock, waiter.lease)
      touch(record_of(lock))
    end
  end
  queues.leave = leave

  -- Has a waiter's server ask what became of it. Anybody may send such a message: it proves nothing.
  local function tell(waiter)
    local name = waiter.group ~= '' and string.match(waiter.group, '^[^,]*') or waiter.lock
    redis.call('PUBLISH', prefix .. 'c:' .. waiter.server, name .. '\t' .. waiter.lease)
  end

  -- Takes an id out of the queue, and of all where it waits with it; tells its server.
  function queues.dequeue(lock, lease)
    local waiter = waiter_of(lock, lease)
    if waiter then
      leave(waiter)
      tell(waiter)
    end
    return waiter
  end

  local function first_lease(lock)
    local key = prefix .. 'q:' .. lock
    return read(key, lock, redis.pcall('ZRANGE', key, 0, 0))[1]
  end

  -- The first of a queue, or nil.
  local function front(record)
    while record.waiting do
      local lease = first_lease(record.lock)
      if not lease then
        record.waiting, record.changed = false, true
        record.kind = record.count > 0 and record.kind or ''
        return nil
      end
      local waiter = waiter_of(record.lock, lease)
      if waiter then
        return waiter
      end
      redis.call('ZREM', prefix .. 'q:' .. record.lock, lease)
    end
  end

  -- Whether nobody listens for the grant any more, or its session takes none.
  local function forlorn(waiter)
    local id = waiter.session
    if id ~= '' and bonds().not_serving(id, bonds().session_of(id)) then
      return true
    end
    return waiter.server ~= me and redis.call('EXISTS', prefix .. 's:' .. waiter.server) == 0
  end

  -- Whether a waiter is the first of this queue, and there is room for it.
  local function has_turn(lock, waiter, part)
    return first_lease(lock) == waiter.lease and admits(record_of(lock), part.mode)
  end

  -- What each lock of the first of a queue is to give, or nil where one of them cannot yet, which is
  -- given too.
  local function gather(record, waiter)
    if waiter.group == '' then
      return admits(record, waiter.mode) and { waiter } or nil
    end
    local parts = {}
    for at, lock in ipairs(wished(waiter)) do
      budget = budget - 1
      parts[at] = lock == waiter.lock and waiter or waiter_of(lock, waiter.lease)
      if not parts[at] or not has_turn(lock, waiter, parts[at]) then
        return nil, lock
      end
    end
    return parts
  end

  -- Whether it is the turn of a waiter at this lock and at all others that it asks for. Where it is
  -- not, the lock that it waits for.
  function queues.waits_for(record, waiter)
    local parts, lock = gather(record, waiter)
    return not parts and (lock or record.lock) or nil
  end

  -- Grants a waiter all that it asked for. Another server's must claim it, because that server may
  -- have died just now.
  local function hand_to(waiter, parts)
    leave(waiter)
    if not tokens_last(parts) then
      tell(waiter)
      return
    end
    local holder
    for _, part in ipairs(parts) do
      holder = grant(record_of(part.lock), part)
    end
    if waiter.server ~= me then
      tell(waiter)
    elseif waiter.group == '' then
      handed[#handed + 1] = {
        waiter.lock, waiter.lease, holder.token, remaining(holder), waiter.owner, waiter.mode,
      }
    else
      local name, locks = string.match(waiter.group, '^([^,]*),(.*)$')
      handed[#handed + 1] = { name, waiter.lease, locks }
    end
  end

  -- Grants the front of the queue for as long as there is room for it. Nobody behind it overtakes.
  function queues.serve(record)
    if is_paused() then
      record.look_at = paused_until
      return
    end
    while budget > 0 do
      if record.count > 0 and not admits(record, record.mode) then
        return
      end
      budget = budget - 1
      local waiter = front(record)
      if not waiter then
        return
      end
      if forlorn(waiter) then
        leave(waiter)
        tell(waiter)
      else
        local parts = gather(record, waiter)
        if not parts then
          -- It keeps those behind it out, who would fit. Its server may die, and nothing else that
          -- happens here would tell them.
          record.look_at = now + claim_ms
          return
        end
        hand_to(waiter, parts)
      end
    end
    record.unfinished, record.changed = record.waiting, true
  end

  -- The holder, or closed place, that ends first.
  local function first_to_end(record)
    local first
    if not record.list then
      local least
      for key, expires in string.gmatch(record.body, '\n([^\t\n]*)\t%d*\t%d*\t%d*\t(%d+)') do
        if not least or tonumber(expires) < least then
          first, least = key, tonumber(expires)
        end
      end
      return find(record, first)
    end
    for _, holder in ipairs(all(record)) do
      if not holder.gone and (not first or holder.expires < first.expires) then
        first = holder
      end
    end
    return first
  end

  function queues.paused()
    return { 'PAUSED', int(paused_ms()) }
  end

  -- Who keeps a newcomer from the lock. Where nobody holds it, the first of its queue waits for
  -- another lock, and so on: the order of the queues leads to somebody who holds one. Nobody need
  -- hold one in a pause.
  function queues.held(record)
    local length = int(redis.call('ZCARD', prefix .. 'q:' .. record.lock))
    for _ = 1, 64 do
      local holder = first_to_end(record)
      if holder then
        return {
          'HELD', holder.owner, holder.token, int(held_ms(holder)), remaining(holder), length,
        }
      end
      local waiter = front(record)
      local lock = waiter and queues.waits_for(record, waiter)
      if not lock then
        break
      end
      record = record_of(lock)
    end
    return is_paused() and queues.paused() or { 'FREE' }
  end

  -- In how long somebody who waits for the lock should look at it.
  function queues.look_in(record)
    local due = record.bound == 0 and record.due or FAR
    if record.bound > 0 then
      for _, holder in ipairs(all(record)) do
        due = holder.gone and due or math.min(due, holder.claim or holder.expires)
      end
    end
    due = is_paused() and math.min(due, paused_until) or due
    return math.max(math.min(due - now, 600000), 0)
  end

  return queues
end

local function queues()
  made_queues = made_queues or make_queues()
  return made_queues
end

-- Hands on every lock where something changed and somebody may wait.
local function hand_over()
  if not work[1] then
    return
  end
  local at = 1
  while work[at] do
    work[at].at_work = false
    queues().serve(work[at])
    at = at + 1
  end
  work = {}
end

-- The reply: the caller's own answer, then every grant that was handed to its waiters.
local function reply(answer)
  hand_over()
  for _, record in pairs(records) do
    if record.changed or (record.look_at and record.count == 0) then
      save(record)
    elseif record.look_at then
      watch(record)
    end
  end
  return { answer, unpack(handed) }
end
