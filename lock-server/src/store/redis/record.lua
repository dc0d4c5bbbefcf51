-- The record of a lock: one string, so that the counter, the lineage and the lock are read in one
-- call and the lock is written, with its expiry, in one: every call costs more than what it does.
--
-- A head: format, "w" when somebody may wait, the kind in use, the mode of its holders, how many
-- there are, how many of them are closed places, how many live by a session, when the first of them
-- must be looked at (at the latest), when the last of them ends (at the earliest known).
-- Then a line a holder, in the order of their grants; an empty line; a line an ended id, newest first.
--
-- Modes are "x" exclusive, "s" shared and "p<size>" permits; all holders of a lock have the same one.
-- Kinds are "l" (exclusive and shared) and "p<size>". A line begins with the lease, or in a closed
-- place with "*" and the token: no text of a client can be taken for the beginning of a line.
-- Of many holders only those that matter are read, unless the time of one of them may be over.
local FAR, FEW = 900000000000000, 8
local records, changed, work, at_work = {}, {}, {}, {}

-- The lock is to be handed on before the script ends.
local function touch(lock)
  if not at_work[lock] then
    at_work[lock] = true
    work[#work + 1] = lock
  end
end

local function mark(record)
  if not record.changed then
    record.changed = true
    changed[#changed + 1] = record
  end
end

local function kind_of(mode)
  return (mode == 'x' or mode == 's') and 'l' or mode
end

-- A holder is `handed` from the hand-over until somebody shows that the grant arrived; `claim` is
-- until when that must happen, where another server's waiter has it. Only a handed grant may be
-- taken back because its waiter is gone.
local function parse(line)
  local key, token, ttl, granted, expires, renewals, claim, delay, owner, incarnation, session,
    metadata = string.match(line, '^' .. string.rep('([^\t]*)\t', 11) .. '(.*)$')
  return {
    key = key, line = line, token = token, ttl = tonumber(ttl), granted = tonumber(granted),
    expires = tonumber(expires), renewals = tonumber(renewals), claim = tonumber(claim),
    handed = claim ~= '', delay = tonumber(delay), owner = owner, incarnation = incarnation,
    session = session, metadata = metadata, closed = string.sub(key, 1, 1) == '*',
  }
end

local function pack(holder)
  return table.concat({
    holder.key, holder.token, int(holder.ttl), int(holder.granted), int(holder.expires),
    int(holder.renewals), holder.claim and int(holder.claim) or (holder.handed and 'h' or ''),
    int(holder.delay), holder.owner, holder.incarnation, holder.session, holder.metadata,
  }, '\t')
end

-- All holders; those that are `gone` are no more.
local function all(record)
  if not record.list then
    local list, known = {}, record.known
    for line in string.gmatch(record.body, '[^\n]+') do
      local holder = parse(line)
      holder = known[holder.key] or holder
      known[holder.key] = holder
      list[#list + 1] = holder
    end
    record.list = list
  end
  return record.list
end

local function line_at(record, key)
  local from = string.find(record.body, '\n' .. key .. '\t', 1, true)
  return from, from and string.find(record.body, '\n', from + 1, true)
end

-- The holder with this lease, or nil.
local function find(record, lease)
  local holder = record.known[lease]
  if not holder and not record.list then
    local from, to = line_at(record, lease)
    if from then
      holder = parse(string.sub(record.body, from + 1, to - 1))
      record.known[lease] = holder
    end
  end
  return holder
end

-- Writes a line in the place of the one that begins with `key`; nil takes it out.
local function splice(record, key, line)
  if not record.list then
    local from, to = line_at(record, key)
    record.body = string.sub(record.body, 1, line and from or from - 1)
      .. (line or '') .. string.sub(record.body, to)
  end
end

-- When a holder must be looked at; a bound one ends with its session, which clears it away.
local function due_of(holder)
  return holder.claim or (holder.session == '' and holder.expires or FAR)
end

local function note(record, holder)
  if record.count == 1 then
    record.due, record.last = due_of(holder), holder.expires
  else
    record.due = math.min(record.due, due_of(holder))
    record.last = math.max(record.last, holder.expires)
  end
  mark(record)
end

-- A holder has changed, and perhaps its key.
local function put(record, holder, old_key)
  holder.line = pack(holder)
  splice(record, old_key or holder.key, holder.line)
  note(record, holder)
end

local function add(record, holder)
  holder.line = pack(holder)
  record.count = record.count + 1
  record.bound = record.bound + (holder.session ~= '' and 1 or 0)
  record.known[holder.key] = holder
  record.added = (record.added or 0) + 1
  if record.added > FEW then
    all(record)
  end
  if record.list then
    record.list[#record.list + 1] = holder
  else
    record.body = record.body .. holder.line .. '\n'
  end
  note(record, holder)
end

local function drop(record, holder)
  splice(record, holder.key)
  record.known[holder.key], holder.gone = nil, true
  record.count = record.count - 1
  record.closed = record.closed - (holder.closed and 1 or 0)
  record.bound = record.bound - (holder.session ~= '' and 1 or 0)
  if record.count == 0 then
    record.mode, record.due, record.last = '', FAR, 0
    record.kind = record.waiting and record.kind or ''
  end
  mark(record)
end

-- Remembers an ended id; the oldest of more than eight makes room.
local function remember(record, lease, token, reason, held_ms, owner, incarnation, why)
  local line = table.concat(
    { lease, token, reason, int(held_ms), int(now), owner, incarnation, why }, '\t')
  local lines, from = line .. '\n' .. record.ended, 1
  mark(record)
  for _ = 1, 8 do
    local at = string.find(lines, '\n', from, true)
    if not at then
      record.ended = lines
      return
    end
    from = at + 1
  end
  record.ended = string.sub(lines, 1, from - 1)
end

-- How this id ended and what was said to it, or nil. Lines begin with the id, so an owner's text can
-- never match.
local function ended_reason(record, lease)
  local lines = '\n' .. record.ended
  local _, last = string.find(lines, '\n' .. lease .. '\t', 1, true)
  if not last then
    return nil
  end
  local reason, why =
    string.match(lines, '^[^\t]*\t([^\t]*)\t[^\t]*\t[^\t]*\t[^\t]*\t[^\t]*\t([^\n]*)', last + 1)
  return reason, why
end

-- Ends a live lease, and lets the lock be handed on. Where the lease ended without its holder's word
-- and was to close the lock for a while, its place is kept by nobody until then.
local function close(record, holder, reason, why)
  remember(record, holder.key, holder.token, reason, now - holder.granted, holder.owner,
    holder.incarnation, why or '')
  unbond(holder.session, 'h', record.lock, holder.key)
  local silent = reason == 'expired' or reason == 'session-ended'
  if silent and holder.delay > 0 and not holder.claim then
    local old_key = holder.key
    record.known[old_key] = nil
    record.bound = record.bound - (holder.session ~= '' and 1 or 0)
    record.closed = record.closed + 1
    holder.key, holder.closed, holder.session = '*' .. holder.token, true, ''
    holder.expires, holder.delay, holder.handed = now + holder.delay, 0, false
    record.known[holder.key] = holder
    put(record, holder, old_key)
  else
    drop(record, holder)
  end
  touch(record.lock)
end

-- Ends what is over: leases, grants that nobody claimed, closed places.
local function expire(record)
  if record.count == 0 or (record.bound == 0 and now < record.due) then
    return
  end
  local list, due, last = all(record), FAR, 0
  if record.bound > 0 then
    know_sessions(list)
  end
  for _, holder in ipairs(list) do
    local session = holder.session ~= '' and session_of(holder.session)
    if session and not no_session(holder.session, session) then
      holder.expires = session.expires
    end
    if holder.session ~= '' and no_session(holder.session, session) then
      close(record, holder, 'session-ended')
    elseif now >= (holder.claim or holder.expires) then
      if holder.closed then
        drop(record, holder)
        touch(record.lock)
      else
        close(record, holder, 'expired')
      end
    end
    if not holder.gone then
      due, last = math.min(due, due_of(holder)), math.max(last, holder.expires)
    end
  end
  if record.due <= now then
    mark(record)
  end
  record.due, record.last = due, last
end

local function load(lock, raw)
  if not raw then
    return {
      lock = lock, waiting = false, kind = '', mode = '', count = 0, closed = 0, bound = 0,
      due = FAR, last = 0, body = '\n', ended = '', known = {}, list = {}, fresh = true,
    }
  end
  local waiting, kind, mode, count, closed, bound, due, last, at = string.match(raw,
    '^2\t(w?)\t(%w*)\t(%w*)\t(%d+)\t(%d+)\t(%d+)\t(%d+)\t(%d+)()\n')
  local stop = at and string.find(raw, '\n\n', at, true)
  if not stop then
    error(redis.error_reply('FORMAT what Redis stores of lock ' .. lock
      .. ' was written by another version of lock-server, and cannot be read'))
  end
  local record = {
    lock = lock, waiting = waiting == 'w', kind = kind, mode = mode, count = tonumber(count),
    closed = tonumber(closed), bound = tonumber(bound), due = tonumber(due), last = tonumber(last),
    body = string.sub(raw, at, stop), ended = string.sub(raw, stop + 2), known = {},
  }
  if record.count <= FEW then
    all(record)
  end
  return record
end

-- Whether one more lease of this mode fits beside the holders.
local function admits(record, mode)
  if record.count == 0 then
    return true
  elseif mode == 'x' or mode ~= record.mode then
    return false
  end
  return record.count < (mode == 's' and shared_max or tonumber(string.sub(mode, 2)))
end

-- The record of a lock, up to date; `raw` is what was read of it in another call. Every script sees
-- one record a lock, and writes it once.
local function record_of(lock, raw)
  local record = records[lock]
  if not record then
    if raw == nil then
      raw = redis.call('GET', prefix .. 'l:' .. lock)
    end
    record = load(lock, raw)
    records[lock] = record
    expire(record)
    if record.waiting and (record.mode == '' or admits(record, record.mode)) then
      touch(lock)
    end
  end
  return record
end

-- Writes the record. An idle one goes away by itself when its ended ids may be forgotten, one that
-- somebody waits for not before the queue does.
local function save(record)
  local key = prefix .. 'l:' .. record.lock
  if record.list then
    local lines = {}
    for _, holder in ipairs(record.list) do
      if not holder.gone then
        lines[#lines + 1] = holder.line
      end
    end
    lines[#lines + 1] = ''
    record.body = '\n' .. table.concat(lines, '\n')
  end
  local raw = table.concat({
    '2', record.waiting and 'w' or '', record.kind, record.mode, int(record.count),
    int(record.closed), int(record.bound), int(record.due), int(record.last),
  }, '\t') .. record.body .. '\n' .. record.ended
  local keep_ms = record.waiting and 600000 or retention
  if record.count > 0 then
    keep_ms = math.max(keep_ms, record.last - now + retention + 60000)
  end
  if record.bound > 0 then
    -- It lives as long as a session, whose end clears it away.
    redis.call('SET', key, raw)
  elseif record.count == 0 and not record.waiting and record.ended == '' then
    redis.call('DEL', key)
  else
    redis.call('SET', key, raw, 'PX', int(keep_ms))
  end
  if record.count > 0 or record.unfinished then
    redis.call('ZADD', prefix .. 'held', int(record.unfinished and now or record.due), record.lock)
  elseif not record.fresh then
    redis.call('ZREM', prefix .. 'held', record.lock)
  end
end

-- A new holder; one that is bound to a session has that session's time.
local function grant(record, request)
  local token = mint(request.minimum)
  if not token then
    return nil
  end
  local holder = {
    key = request.lease, token = token, ttl = request.ttl, granted = now,
    expires = now + request.ttl, renewals = 0, delay = request.delay, owner = request.owner,
    incarnation = request.incarnation, session = request.session, metadata = request.metadata,
    handed = request.server ~= nil, claim = request.server and request.server ~= me
      and now + claim_ms or nil,
  }
  if request.session ~= '' then
    local session = session_of(request.session)
    holder.ttl, holder.expires = session.ttl, session.expires
    bond(request.session, 'h', record.lock, request.lease)
  end
  record.mode, record.kind = request.mode, kind_of(request.mode)
  add(record, holder)
  return holder
end

-- The holder has shown itself: the grant has arrived, and a claimed one's time begins now.
local function confirm(record, holder)
  if holder.handed then
    if holder.claim and holder.session == '' then
      holder.expires = now + holder.ttl
    end
    holder.claim, holder.handed = nil, false
    put(record, holder)
  end
end

local function remaining(holder)
  return int(math.max(holder.expires - now, 0))
end

local function granted(record, holder)
  return { 'GRANTED', holder.token, remaining(holder), holder.owner, record.mode }
end

-- How a lease ended that is not live.
local function lost(record, lease)
  local reason, why = ended_reason(record, lease)
  if reason then
    return { 'LOST', reason, why }
  end
  return { 'LOST', record.count > record.closed and 'superseded' or 'expired', '' }
end

-- The holder, or closed place, that ends first.
local function first_to_end(record)
  local first
  for _, holder in ipairs(all(record)) do
    if not holder.gone and (not first or holder.expires < first.expires) then
      first = holder
    end
  end
  return first
end
