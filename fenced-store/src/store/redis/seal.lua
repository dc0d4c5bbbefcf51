-- Raises the mark and touches no object.
-- After: as check() says. Returns {'sealed'}.
local refusal = check(false)
if refusal then return refusal end
return {'sealed'}
