-- Opens a state, after every connection of the port was ended.
-- KEYS[1]  hash: the state   ARGV[1]  its id
-- Returns 1, or 0 if the state is another one by now.
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then return 0 end
local process = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
redis.call('HSET', KEYS[1], 'phase', 'open', 'process', process)
return 1
