-- Reads an object. It raises the mark as a write does: whoever has read can no longer be overtaken.
-- After: as check() says; the object is as it was.
-- Returns {'found', etag, content type, body} or {'absent'}.
local object = redis.call('HMGET', KEYS[5], 'etag', 'type', 'body')
local refusal = check(object[1])
if refusal then return refusal end
if not object[1] then return {'absent'} end
return {'found', object[1], object[2], object[3]}
