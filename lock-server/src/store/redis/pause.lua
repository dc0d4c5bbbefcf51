-- For how long leases may still live that nobody can see any more, and the pause in grants for their
-- sake. lineage.lua and clock.lua go on here.
--
-- Keys:  in-use  "<longest> <until>": no lease of any server has more time left than `longest`, and
--                none lives after `until`; ms
--        pause   "<until> <since> <length>": nobody is granted a lock before `until`; what lived at
--                `since` has its whole time from then; `length` is how long the pause was to last.
--                It stays for as long as such a lease may live

local function int(number)
  return string.format('%.0f', number)
end

local function time_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- For how long a lease may still live: what the caller tells, and what was told before. It is written
-- an eighth ahead, so that equal leases one after the other need few writes.
local function in_use(prefix, now, told)
  local key = prefix .. 'in-use'
  local longest, till = string.match(redis.call('GET', key) or '', '^(%d+) (%d+)$')
  longest, till = tonumber(longest) or 0, tonumber(till) or 0
  local ends = now + told
  if told > 0 and (ends > till or told > longest) then
    -- Where this one outlives all others, they have less time left than it has.
    longest = told
    till = ends > till and ends + math.max(math.floor(told / 8), 1000) or till
    redis.call('SET', key, int(longest) .. ' ' .. int(till), 'PX', int(till - now))
  end
  return math.max(math.min(longest, till - now), 0)
end

-- Lets nobody be granted a lock for so long from now on, at least. Gives what is left of the pause;
-- with `wait` 0 it looks, and puts one right whose end a clock that went back has moved away.
local function pause(prefix, now, wait, lives)
  local key = prefix .. 'pause'
  local till, since, length = string.match(redis.call('GET', key) or '', '^(%d+) (%d+) (%d+)$')
  till, since, length = tonumber(till) or 0, tonumber(since) or 0, tonumber(length) or 0
  local moved = till > now + length
  if moved then
    till, since = now + length, math.min(since, now)
  end
  if wait > 0 then
    till, since = math.max(till, now + wait), now
    length = till - now
  end
  if moved or wait > 0 then
    redis.call('SET', key, int(till) .. ' ' .. int(since) .. ' ' .. int(length), 'PX',
      int(math.max(till - now, lives, 1)))
  end
  return math.max(till - now, 0)
end
