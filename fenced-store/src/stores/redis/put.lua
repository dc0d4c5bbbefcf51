-- Writes an object. Before the arguments of once.lua at the end of ARGV: etag, content type, body.
-- After: as check_once() says; unless it refuses, the object is exactly as given.
-- Returns {'stored', '1' if there was none before}.
local etag = redis.call('HGET', KEYS[5], 'etag')
local refusal = check_once(etag)
if refusal then return refusal end
local n = #ARGV - 3
redis.call('HSET', KEYS[5], 'etag', ARGV[n - 2], 'type', ARGV[n - 1], 'body', ARGV[n])
local created = etag and '0' or '1'
remember('stored ' .. created .. ' ' .. ARGV[n - 2])
return {'stored', created}
