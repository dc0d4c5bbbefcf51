-- Removes an object; the mark stays.
-- After: as check_once() says; unless it refuses, there is no object.
-- Returns {'deleted'} or {'absent'}.
local etag = redis.call('HGET', KEYS[5], 'etag')
local refusal = check_once(etag)
if refusal then return refusal end
local existed = redis.call('DEL', KEYS[5])
remember('deleted ' .. existed)
if existed == 1 then return {'deleted'} end
return {'absent'}
