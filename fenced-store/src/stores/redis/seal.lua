
-- Raises the mark without any other effect. Returns {'sealed'} or as enter() says.
return enter(nil) or {'sealed'}
