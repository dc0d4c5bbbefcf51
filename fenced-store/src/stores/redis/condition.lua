
-- Common part of the objects' scripts.
-- KEYS[5]  hash of one object: etag, type, body
-- ARGV[5]  condition: none, exists, absent, any-of, none-of
-- ARGV[6]  number of tags in the condition; they follow from ARGV[7] on

local function condition_holds(etag)
  local kind, count = ARGV[5], tonumber(ARGV[6])
  if kind == 'exists' then return etag ~= false end
  if kind == 'absent' then return etag == false end
  local listed = false
  for i = 7, 6 + count do
    if etag == ARGV[i] then listed = true end
  end
  if kind == 'any-of' then return listed end
  if kind == 'none-of' then return not listed end
  return true
end

-- After: either a refusal is returned and no data was written, or the mark is the presented token
-- (with a fence), the condition holds, and nil is returned.
local function check(etag)
  if ARGV[2] ~= '' then
    local refusal = enter(nil)
    if refusal then return refusal end
  end
  if not condition_holds(etag) then return {'precondition-failed', etag or ''} end
  return nil
end

