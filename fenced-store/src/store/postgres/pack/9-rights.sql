-- Rights: none on tables; functions for those who are granted them. Triggers run as the client.
revoke all on schema fence from public;
revoke all on all tables in schema fence from public;
revoke all on all functions in schema fence from public;
grant usage on schema fence to public;
grant execute on function fence.require(text, text) to public;
