-- Rights: none on tables, and no function but those that triggers call as the client. Others are
-- granted by name: enter and seal to clients, the rest of 3-sessions.sql to a guard.
revoke all on schema fence from public;
revoke all on all tables in schema fence from public;
revoke all on all functions in schema fence from public;
grant usage on schema fence to public;
grant execute on function fence.require(text, text), fence.row_lock(jsonb, text[]) to public;
