-- Removes an object; the mark stays.
-- After: as check() says; when it lets pass, there is no object.
-- Returns {'deleted'} or {'absent'}.
local etag = redis.call('HGET', KEYS[3], 'etag')
local refusal = check(etag)
if refusal then return refusal end
if redis.call('DEL', KEYS[3]) == 1 then return {'deleted'} end
return {'absent'}
