-- Writes an object. The last three of ARGV: etag, content type, body.
-- After: as check() says; when it lets pass, the object is exactly what was given.
-- Returns {'stored', '1' when there was none before}.
local etag = redis.call('HGET', KEYS[3], 'etag')
local refusal = check(etag)
if refusal then return refusal end
local n = #ARGV
redis.call('HSET', KEYS[3], 'etag', ARGV[n - 2], 'type', ARGV[n - 1], 'body', ARGV[n])
return {'stored', etag and '0' or '1'}
