
-- Raises the mark and touches no object. Returns {'sealed'} or as enter() says.
return enter(nil) or {'sealed'}
