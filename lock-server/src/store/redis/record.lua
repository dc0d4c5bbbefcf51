-- The record of a lock: one string, so that the counter, the lineage and the lock are read in one
-- call and the lock is written, with its expiry, in one: every call costs more than what it does.
--
-- A head: format, "w" when somebody may wait, the kind in use, the mode of its holders; where there
-- are many of them also how many, how many of those are closed places, how many live by a session,
-- when the first must be looked at (at the latest) and when the last ends (at the earliest known).
-- Then a line a holder, in the order of their grants; an empty line; a line an ended id, newest first.
--
-- Modes are "x" exclusive, "s" shared and "p<size>" permits; all holders of a lock have the same one.
-- Kinds are "l" (exclusive and shared) and "p<size>". A line begins with the lease, or in a closed
-- place with "*" and the token: no text of a client can be taken for the beginning of a line.
-- Of many holders only those that matter are read, unless the time of one of them may be over.
--
-- Numbers below FAR become text with every digit where they are put between texts.
local FAR, FEW = 99999999999999, 8
local records, work = {}, {}

-- The lock is to be handed on before the script ends.
local function touch(record)
  if record.waiting and not record.at_work then
    record.at_work = true
    work[#work + 1] = record
  end
end

local function kind_of(mode)
  return (mode == 'x' or mode == 's') and 'l' or mode
end

-- A holder is `handed`, to the server that it waited at, from the hand-over until somebody shows that
-- the grant arrived; `claim` is until when that must happen, where another server's waiter has it.
-- Only a handed grant may be taken back because its waiter is gone, and only by that server: an older
-- try of the same request may have waited at another.
local function parse(line)
  local key, token, ttl, granted, expires, renewals, claim, delay, owner, incarnation, session,
    metadata = string.match(line, '^([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)'
    .. '\t([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t([^\t]*)\t(.*)$')
  return {
    key = key, line = line, token = token, ttl = tonumber(ttl), granted = tonumber(granted),
    expires = tonumber(expires), renewals = tonumber(renewals),
    claim = claim ~= '' and tonumber(string.match(claim, '^%d+')) or nil,
    handed = claim ~= '' and string.match(claim, ':(.*)$'), delay = tonumber(delay), owner = owner, incarnation = incarnation,
    session = session, metadata = metadata, closed = string.byte(key) == 42,
  }
end

local function pack(holder)
  return holder.key .. '\t' .. holder.token .. '\t' .. holder.ttl .. '\t' .. holder.granted .. '\t'
    .. holder.expires .. '\t' .. holder.renewals .. '\t'
    .. (holder.handed and (holder.claim or 'h') .. ':' .. holder.handed or '') .. '\t' .. holder.delay .. '\t'
    .. holder.owner .. '\t' .. holder.incarnation .. '\t' .. holder.session .. '\t'
    .. holder.metadata
end

-- All holders; those that are `gone` are no more.
local function all(record)
  if not record.list then
    local list, known = {}, record.known
    for line in string.gmatch(record.body, '[^\n]+') do
      local holder = known[string.match(line, '^[^\t]*')] or parse(line)
      list[#list + 1] = holder
    end
    record.list = list
  end
  return record.list
end

-- Where the line of one of many is that are not all read.
local function line_at(record, key)
  local from = string.find(record.body, '\n' .. key .. '\t', 1, true)
  return from, from and string.find(record.body, '\n', from + 1, true)
end

-- The holder with this lease, or nil.
local function find(record, lease)
  if record.list then
    for _, holder in ipairs(record.list) do
      if holder.key == lease and not holder.gone then
        return holder
      end
    end
    return nil
  end
  local from, to = line_at(record, lease)
  if from and not record.known[lease] then
    record.known[lease] = parse(string.sub(record.body, from + 1, to - 1))
  end
  return from and record.known[lease]
end

-- When a holder must be looked at; a bound one ends with its session, which clears it away.
local function due_of(holder)
  return holder.claim or (holder.session == '' and holder.expires or FAR)
end

local function note(record, holder)
  record.changed = true
  if record.count == 1 then
    record.due, record.last = due_of(holder), holder.expires
  else
    record.due = math.min(record.due, due_of(holder))
    record.last = math.max(record.last, holder.expires)
  end
end

-- A holder has changed, and perhaps its key.
local function put(record, holder, old_key)
  holder.line = pack(holder)
  if not record.list then
    local from, to = line_at(record, old_key or holder.key)
    record.known[old_key or holder.key], record.known[holder.key] = nil, holder
    record.body = string.sub(record.body, 1, from) .. holder.line .. string.sub(record.body, to)
  end
  note(record, holder)
end

local function add(record, holder)
  record.count = record.count + 1
  record.bound = record.bound + (holder.session ~= '' and 1 or 0)
  -- One or two at the end of many are cheap; whoever adds more reads them all.
  record.added = (record.added or 0) + 1
  holder.line = pack(holder)
  if record.list or record.added > FEW then
    local list = all(record)
    list[#list + 1] = holder
  else
    record.body = record.body .. holder.line .. '\n'
    record.known[holder.key] = holder
  end
  note(record, holder)
end

local function drop(record, holder)
  if not record.list then
    local from, to = line_at(record, holder.key)
    record.known[holder.key] = nil
    record.body = string.sub(record.body, 1, from - 1) .. string.sub(record.body, to)
  end
  holder.gone, record.changed, record.count = true, true, record.count - 1
  record.closed = record.closed - (holder.closed and 1 or 0)
  record.bound = record.bound - (holder.session ~= '' and 1 or 0)
  if record.count == 0 then
    record.mode, record.due, record.last = '', FAR, 0
    record.kind = record.waiting and record.kind or ''
  end
end

-- Remembers an ended id; the oldest of more than eight makes room.
local function remember(record, lease, token, reason, lasted_ms, owner, incarnation, why)
  local lines, from = lease .. '\t' .. token .. '\t' .. reason .. '\t' .. lasted_ms .. '\t' .. now
    .. '\t' .. owner .. '\t' .. incarnation .. '\t' .. why .. '\n' .. record.ended, 1
  record.changed, record.ended = true, lines
  for _ = 1, 8 do
    local at = string.find(lines, '\n', from, true)
    if not at then
      return
    end
    from = at + 1
  end
  record.ended = string.sub(lines, 1, from - 1)
end

-- How this id ended and what was said to it, or nil. Lines begin with the id, so an owner's text can
-- never match.
local function ended_reason(record, lease)
  if record.ended == '' then
    return nil
  end
  local lines = '\n' .. record.ended
  local _, last = string.find(lines, '\n' .. lease .. '\t', 1, true)
  if not last then
    return nil
  end
  local reason, why =
    string.match(lines, '^[^\t]*\t([^\t]*)\t[^\t]*\t[^\t]*\t[^\t]*\t[^\t]*\t([^\n]*)', last + 1)
  return reason, why
end

-- For how long; not less than nothing where the clock of Redis went back.
local function held_ms(holder)
  return math.max(now - holder.granted, 0)
end

-- Ends a live lease, and lets the lock be handed on. Where the lease ended without its holder's word
-- and was to close the lock for a while, its place is kept by nobody until then.
local function close(record, holder, reason, why)
  remember(record, holder.key, holder.token, reason, held_ms(holder), holder.owner,
    holder.incarnation, why or '')
  if holder.session ~= '' then
    bonds().unbond(holder.session, 'h', record.lock, holder.key)
  end
  local silent = reason == 'expired' or reason == 'session-ended'
  if silent and holder.delay > 0 and not holder.claim then
    local old_key = holder.key
    record.bound = record.bound - (holder.session ~= '' and 1 or 0)
    record.closed = record.closed + 1
    holder.key, holder.closed, holder.session = '*' .. holder.token, true, ''
    holder.expires = now + holder.delay
    holder.handed, holder.claim = false, nil
    put(record, holder, old_key)
  else
    drop(record, holder)
  end
  touch(record)
end

-- Gives what lived when the clock jumped, or Redis lost its memory, its whole time from then: how much
-- of it was left cannot be told any more.
local function make_whole(holder)
  local whole = whole_since + (holder.closed and holder.delay or holder.ttl)
  if holder.session == '' and holder.expires < whole then
    holder.expires = whole
    holder.claim = holder.claim and math.max(holder.claim, whole_since + claim_ms)
    holder.line = pack(holder)
  end
end

-- Ends what is over: leases, grants that nobody claimed, closed places.
local function expire(record)
  local list, due, last = all(record), FAR, 0
  local no_session = record.bound > 0 and bonds().read(list)
  record.changed = record.changed or record.due <= now
  for _, holder in ipairs(list) do
    local session = holder.session ~= '' and bonds().session_of(holder.session)
    if session == false and holder.session ~= '' then
      bonds().has_ended(holder.session)
    end
    if holder.session ~= '' and no_session(holder.session, session) then
      close(record, holder, 'session-ended')
    else
      holder.expires = session and session.expires or holder.expires
      if whole_since > 0 then
        make_whole(holder)
      end
      if now >= (holder.claim or holder.expires) and holder.closed then
        drop(record, holder)
        touch(record)
      elseif now >= (holder.claim or holder.expires) then
        close(record, holder, 'expired')
      end
    end
    if not holder.gone then
      due, last = math.min(due, due_of(holder)), math.max(last, holder.expires)
    end
  end
  record.due, record.last = due, last
end

-- Checks that a lock without a record has none because nothing of it lives: a record outlives the time
-- in `held` by a minute at least.
local function never_written(lock)
  local held = prefix .. 'held'
  local index = redis.pcall('ZSCORE', held, '')
  if type(index) ~= 'string' then
    not_as_left('the index of the locks is gone')
  end
  local due = redis.call('ZSCORE', held, lock)
  if due and tonumber(due) > now - 60000 then
    redis.call('ZREM', held, lock)
    not_as_left('the record of lock ' .. lock .. ' is gone')
  end
end

local function load(lock, raw)
  local record = {
    lock = lock, waiting = false, kind = '', mode = '', count = 0, closed = 0, bound = 0,
    due = FAR, last = 0, ended = '', list = {}, fresh = not raw, changed = false, at_work = false,
  }
  if not raw then
    never_written(lock)
    return record
  end
  local waiting, kind, mode, many, at = string.match(raw, '^2\t(w?)\t(%w*)\t(%w*)([^\n]*)()\n')
  local stop = at and string.find(raw, '\n\n', at, true)
  if not stop then
    error(redis.error_reply('FORMAT what Redis stores of lock ' .. lock
      .. ' was written by another version of lock-server, and cannot be read'))
  end
  record.waiting, record.kind, record.mode = waiting == 'w', kind, mode
  record.ended = string.sub(raw, stop + 2)
  if many ~= '' then
    local count, closed, bound, due, last = string.match(many, '^\t(%d+)\t(%d+)\t(%d+)\t(%d+)\t(%d+)')
    record.count, record.closed, record.bound = tonumber(count), tonumber(closed), tonumber(bound)
    record.due, record.last = tonumber(due), tonumber(last)
    record.body, record.known, record.list = string.sub(raw, at, stop), {}, nil
    return record
  end
  while at < stop do
    local to = string.find(raw, '\n', at + 1, true)
    local holder = parse(string.sub(raw, at + 1, to - 1))
    if tonumber(holder.token) > counter then
      not_as_left('the counter is below a token of lock ' .. lock)
    end
    record.count = record.count + 1
    record.list[record.count] = holder
    record.closed = record.closed + (holder.closed and 1 or 0)
    record.bound = record.bound + (holder.session ~= '' and 1 or 0)
    local due = due_of(holder)
    record.due = due < record.due and due or record.due
    record.last = holder.expires > record.last and holder.expires or record.last
    at = to
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
      -- MGET takes a key of another type for a missing one, which is found out.
      raw = redis.call('MGET', prefix .. 'l:' .. lock)[1]
    end
    record = load(lock, raw)
    records[lock] = record
    if record.bound > 0 or now >= record.due then
      expire(record)
    end
    if record.waiting and (record.mode == '' or admits(record, record.mode)) then
      touch(record)
    end
  end
  return record
end

-- Has the sweep look at the record when something is due there.
local function watch(record)
  local at = record.unfinished and now or math.min(record.due, record.look_at or FAR)
  if record.count == 0 then
    -- Before the record of a lock that only has waiters goes away by itself.
    at = math.min(at, now + 300000)
  end
  redis.call('ZADD', prefix .. 'held', int(at), record.lock)
end

-- Writes the record. An idle one goes away by itself when its ended ids may be forgotten, one that
-- somebody waits for not before the queue does.
local function save(record)
  local key = prefix .. 'l:' .. record.lock
  local head = '2\t' .. (record.waiting and 'w' or '') .. '\t' .. record.kind .. '\t' .. record.mode
  local body = record.body
  if record.list and record.count <= FEW then
    body = '\n'
    for _, holder in ipairs(record.list) do
      body = holder.gone and body or body .. holder.line .. '\n'
    end
  elseif record.list then
    local lines = { '' }
    for _, holder in ipairs(record.list) do
      lines[#lines + 1] = not holder.gone and holder.line or nil
    end
    lines[#lines + 1] = ''
    body = table.concat(lines, '\n')
  end
  if not record.list or record.count > FEW then
    head = head .. '\t' .. record.count .. '\t' .. record.closed .. '\t' .. record.bound .. '\t'
      .. record.due .. '\t' .. record.last
  end
  local keep_ms = record.waiting and 600000 or retention
  if record.count > 0 then
    local last = math.max(record.last, record.due < FAR and record.due or 0)
    keep_ms = math.max(keep_ms, last - now + retention + 60000)
  end
  if record.bound > 0 then
    -- It lives as long as a session, whose end clears it away.
    redis.call('SET', key, head .. body .. '\n' .. record.ended)
  elseif record.count == 0 and not record.waiting and record.ended == '' then
    redis.call('DEL', key)
  else
    redis.call('SET', key, head .. body .. '\n' .. record.ended, 'PX', int(keep_ms))
  end
  if record.count > 0 or (record.waiting and (record.unfinished or record.look_at)) then
    watch(record)
  elseif not record.fresh then
    redis.call('ZREM', prefix .. 'held', record.lock)
  end
end

-- Makes the request a new holder; one that is bound to a session has that session's time. Where it
-- waited, `server` is that of its waiter.
local function grant(record, request)
  local token = mint(request.minimum)
  if not token then
    return nil
  end
  request.key, request.token, request.granted, request.renewals = request.lease, token, now, 0
  request.expires, request.handed = now + request.ttl, request.server
  request.claim = request.handed and request.server ~= me and now + claim_ms or nil
  if request.session ~= '' then
    local session = bonds().session_of(request.session)
    request.ttl, request.expires = session.ttl, session.expires
    bonds().bond(request.session, 'h', record.lock, request.lease)
  end
  record.mode, record.kind = request.mode, kind_of(request.mode)
  add(record, request)
  return request
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

-- Whether a live grant may be with too few replicas for any caller to know of it. `known` is the highest
-- token that the caller knows to be with enough of them; empty where no replicas are waited for.
local function is_unacknowledged(holder, known)
  if known == '' or not holder.handed then
    return false
  end
  local stored = tonumber(redis.call('GET', prefix .. 'replicas') or '') or 0
  return tonumber(holder.token) > math.max(stored, tonumber(known))
end

-- Whether it was handed over to a waiter of this server, which has not claimed it.
local function is_unclaimed(holder)
  return holder.handed == me and holder.claim
end

-- As confirm, but what is claimed may still be rolled back where replicas are waited for next.
local function claim(record, holder, known)
  if known == '' or not is_unclaimed(holder) then
    return confirm(record, holder)
  end
  holder.expires = holder.session == '' and now + holder.ttl or holder.expires
  holder.claim = nil
  put(record, holder)
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
