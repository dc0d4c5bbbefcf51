
-- Registers a connection of the port under a token. It is run on that very connection, which sends
-- nothing else before the reply is read.
-- ARGV[5]  the client id of the connection
-- After: {'registered'}: every script that raises the mark from now on finds the connection, and
-- nothing below its token can act. {'sealing'}: it is registered, and may send nothing yet. A
-- refusal: it is not registered.
return enter(run_id() .. ':' .. ARGV[5]) or {'registered'}
