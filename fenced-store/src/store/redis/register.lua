
-- Registers a connection of the port under a token. It is run on that very connection, and nothing
-- else is sent there before its reply is read.
-- ARGV[5]  the client id of the connection
-- After: {'registered'}: the connection is known to whoever raises the mark from now on, and
-- nothing below its token can act. {'sealing'}: it is known, and may send nothing yet.
-- A refusal: it is not known.
return enter(run_id() .. ':' .. ARGV[5]) or {'registered'}
