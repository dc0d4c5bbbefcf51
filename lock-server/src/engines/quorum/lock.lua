-- The record of a lock at one node; what the operations of a batch share. After common.lua.
--
-- The record is a text: a line for the live lease (empty without one), then a line an ended id,
-- newest first, at most eight. It expires when the lease's time and then the retention are over.
-- A lease whose time is over is an ended id from then on, whether or not that is written already.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- As a text: a number is formatted anew wherever it is written.
local now_text = string.format('%.0f', now)
-- Of the node: every bucket's counter is at least at floor; p has the buckets of the batch.
local floor, covered, p
-- Of the operation: the record's key, its bucket, and how long ended ids are remembered, ms.
local key, bucket, retention
-- The record, once it was read.
local live, ended

-- The highest token that counts as accepted in the bucket.
local function accepted()
  return math.max(p[bucket] or 0, floor)
end

local function held_ms(lease)
  return math.max(now - lease.granted, 0)
end

-- Remembers an ended id; the oldest of more than eight makes room.
local function remember(id, token, reason, lasted_ms, at, owner, why)
  local lines, from = table.concat({ id, token, reason, lasted_ms, at, owner, why }, '\t') .. '\n'
    .. ended, 1
  ended = lines
  for _ = 1, 8 do
    local stop = string.find(lines, '\n', from, true)
    if not stop then
      return
    end
    from = stop + 1
  end
  ended = string.sub(lines, 1, from - 1)
end

-- How this id ended and what was said about it, or nil. Lines begin with the id, so that no text of
-- a client can be taken for one.
local function ended_reason(id)
  local lines = '\n' .. ended
  local _, last = string.find(lines, '\n' .. id .. '\t', 1, true)
  if not last then
    return nil
  end
  local reason, why =
    string.match(lines, '^[^\t]*\t([^\t]*)\t[^\t]*\t[^\t]*\t[^\t]*\t([^\n]*)', last + 1)
  return reason, why
end

local HEAD = '^' .. string.rep('([^\t]*)\t', 10) .. '(.*)$'

local function read_record()
  live, ended = nil, ''
  local text = redis.call('GET', key)
  if not text then
    return
  end
  local head, lines = string.match(text, '^([^\n]*)\n(.*)$')
  ended = lines
  if head == '' then
    return
  end
  local id, token, ttl, granted, expires, renewals, renewer, order, attempt, owner, metadata =
    string.match(head, HEAD)
  live = {
    id = id, token = token, ttl = tonumber(ttl), granted = tonumber(granted),
    expires = tonumber(expires), renewals = tonumber(renewals), renewer = renewer,
    order = tonumber(order), attempt = attempt, owner = owner, metadata = metadata,
  }
  if live.expires <= now then
    remember(id, token, 'expired', math.max(live.expires - live.granted, 0), live.expires, owner, '')
    live = nil
  end
end

-- Until when the node remembers anything is noted ahead, in steps of at most ten seconds.
local function save()
  if not live and (ended == '' or retention == 0) then
    redis.call('DEL', key)
    return
  end
  local gone = math.max(live and live.expires or 0, now) + retention
  if gone > covered then
    local ahead = gone + math.min(gone - now, 10000)
    redis.call('HSET', KEYS[1], 'covered', int(ahead))
    covered = ahead
  end
  local head = live and table.concat({
    live.id, live.token, live.ttl, live.granted, live.expires, live.renewals, live.renewer, live.order,
    live.attempt, live.owner, live.metadata,
  }, '\t') or ''
  redis.call('SET', key, head .. '\n' .. ended, 'PXAT', int(gone))
end

local function accept(token)
  if tonumber(token) > accepted() then
    redis.call('HSET', KEYS[1], 'p' .. bucket, token)
    p[bucket] = tonumber(token)
  end
end

local function held()
  return { 'HELD', live.id, live.owner, live.token, held_ms(live), live.expires - now, accepted() }
end

-- The principal of a lease, with which its metadata begins, or nil.
local function principal(metadata)
  return string.match(metadata, '^@([^\t]*)\t')
end

-- Whether a lease with one metadata is of another principal than a request with the other.
-- Without a principal, a lease is open to every request, and a request is for every lease.
local function is_anothers(lease, request)
  local theirs, own = principal(lease), principal(request)
  return theirs and own and theirs ~= own
end

-- Why this id cannot be asked for here, or nil.
local function refused(id, owner, metadata)
  local reason, why = ended_reason(id)
  if reason then
    return { 'ENDED', reason, why }
  elseif live and live.id ~= id then
    return held()
  elseif live and (live.owner ~= owner or is_anothers(live.metadata, metadata)) then
    return { 'CONFLICT', live.owner }
  end
end
