-- Reads an object. It raises the mark as a write does, so that no lower write can follow the read.
-- After: as check() says; the object is unchanged.
-- Returns {'found', etag, content type, body} or {'absent'}.
local object = redis.call('HMGET', KEYS[5], 'etag', 'type', 'body')
local refusal = check(object[1])
if refusal then return refusal end
if not object[1] then return {'absent'} end
return {'found', object[1], object[2], object[3]}
