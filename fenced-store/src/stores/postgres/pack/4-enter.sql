-- Tokens of a transaction, and the check that triggers make.

-- HMAC-SHA256 with the server's own sha256: no extension is needed.
create or replace function fence.pad(p_key bytea, p_byte integer) returns bytea
language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
declare
  padded bytea := p_key;
begin
  if length(padded) > 64 then padded := sha256(padded); end if;
  padded := padded || decode(repeat('00', 64 - length(padded)), 'hex');
  for i in 0..63 loop
    padded := set_byte(padded, i, get_byte(padded, i) # p_byte);
  end loop;
  return padded;
end $$;

create or replace function fence.authenticate(p_kid text, p_text text) returns bytea
language plpgsql stable as $$
declare
  key fence.keys;
begin
  select * into key from fence.keys k where k.kid = p_kid;
  return sha256(key.outer_pad || sha256(key.inner_pad || convert_to(p_text, 'UTF8')));
end $$;

-- Adds a key that verifies tokens, as in the lock server's key file. For the owner alone.
create or replace function fence.set_key(p_kid text, p_key bytea) returns void
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
  if p_kid !~ '^[A-Za-z0-9._-]{1,32}$' or length(p_key) < 32 then
    perform fence.refuse('FE400', 'a key has a name and at least 32 bytes', null, null);
  end if;
  insert into fence.keys as k (kid, inner_pad, outer_pad)
    values (p_kid, fence.pad(p_key, 54), fence.pad(p_key, 92))
    on conflict (kid) do update
      set inner_pad = excluded.inner_pad, outer_pad = excluded.outer_pad;
end $$;

-- The key of this database's own claims. No token can name it.
do $$
declare
  key bytea := decode(replace(gen_random_uuid()::text || gen_random_uuid()::text
    || gen_random_uuid()::text, '-', ''), 'hex');
begin
  insert into fence.keys (kid, inner_pad, outer_pad)
    values ('', fence.pad(key, 54), fence.pad(key, 92)) on conflict (kid) do nothing;
end $$;

-- Refuses a token that this session may not claim.
create or replace function fence.check_claimable(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns void language plpgsql volatile as $$
begin
  if not exists (select from fence.sessions s where s.pid = pg_backend_pid() and s.closed) then
    return;
  end if;
  if exists (select from fence.sessions s
      where s.pid = pg_backend_pid() and s.closed and s.backend_start = fence.start_of(pg_backend_pid()))
    and not exists (select from fence.sessions s
      where s.pid = pg_backend_pid() and s.backend_start = fence.start_of(pg_backend_pid())
      and s.namespace = p_namespace and s.lock = p_lock and s.token = p_token
      and s.lease = p_lease) then
    perform fence.refuse('FE403', format('this session is not registered for lock %s', p_lock), null,
      'Log in with the token of this lock.');
  end if;
end $$;

create or replace function fence.sign(p_claims text) returns text
language plpgsql volatile as $$
declare
  key fence.keys;
begin
  select * into key from fence.keys k where k.kid = '';
  return fence.signature(key.inner_pad, key.outer_pad, p_claims);
end $$;

-- The transaction's claims, a line each: namespace, lock, token, lease. A client can read and write
-- the setting, but not sign it; and a claim is no more than the right to try fence.hold().
create or replace function fence.claims() returns text
language plpgsql volatile as $$
declare
  setting text := current_setting('fence.claims', true);
begin
  if setting is null or length(setting) < 65 or pg_current_xact_id_if_assigned() is null then
    return '';
  end if;
  if left(setting, 64) <> fence.sign(substr(setting, 65)) then
    return '';
  end if;
  return substr(setting, 65);
end $$;

create or replace function fence.claim_line(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns text language plpgsql immutable as $$
begin
  return p_namespace || ' ' || p_lock || ' ' || p_token::text || ' ' || p_lease::text || E'\n';
end $$;

create or replace function fence.is_claimed(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns boolean language plpgsql volatile as $$
begin
  return strpos(E'\n' || fence.claims(),
    E'\n' || fence.claim_line(p_namespace, p_lock, p_token, p_lease)) > 0;
end $$;

-- The newest claim is the first one.
create or replace function fence.claim(
  p_namespace text, p_lock text, p_token bigint, p_lease uuid)
returns void language plpgsql volatile as $$
declare
  claimed text;
begin
  if fence.is_claimed(p_namespace, p_lock, p_token, p_lease) then return; end if;
  claimed := fence.claim_line(p_namespace, p_lock, p_token, p_lease) || fence.claims();
  claimed := set_config('fence.claims', fence.sign(claimed) || claimed, true);
end $$;

-- Enters a fence with a token: from here until the transaction ends nothing higher is admitted, and
-- tables that need the lock can be changed. Raises FE412 for a stale token.
create or replace function fence.enter(
  p_lock text, p_token bigint, p_lease uuid, p_namespace text default 'default')
returns bigint language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp as $$
declare
  claim constant text := fence.claim_line(p_namespace, p_lock, p_token, p_lease);
  signed text;
  ignored text;
begin
  if claim is null or p_token not between 1 and 999999999999999 then
    perform fence.check_names(p_namespace, p_lock, p_token, p_lease);
  end if;
  ignored := fence.check_claimable(p_namespace, p_lock, p_token, p_lease);
  ignored := fence.show_token(p_namespace, p_lock, p_token);
  -- A raise waits for those who have entered, so that these do not wait for it.
  if not fence.is_quiet(p_namespace, p_lock) then
    if not fence.is_claimed(p_namespace, p_lock, p_token, p_lease) then
      perform fence.await_raise(p_namespace, p_lock);
    end if;
  elsif coalesce(current_setting('fence.claims', true), '') = '' then
    signed := fence.hold(p_namespace, p_lock, p_token || ' ' || p_lease, claim);
    if signed is not null then
      ignored := set_config('fence.claims', signed || claim, true);
      return p_token;
    end if;
  end if;
  perform fence.enter_checked(p_namespace, p_lock, p_token, p_lease);
  perform fence.claim(p_namespace, p_lock, p_token, p_lease);
  return p_token;
end $$;

-- Reads a Fencing-Token header in the form that the lock server writes, and verifies its signature.
create or replace function fence.verify(
  p_header text, out namespace text, out lock text, out token bigint, out lease uuid)
language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
  parts text[] := regexp_match(p_header,
    '^([0-9]{1,15});lock="([A-Za-z0-9._:/-]+)";lease="([0-9a-f-]{36})";'
    'ns="([A-Za-z0-9._-]{1,64})";kid="([A-Za-z0-9._-]{1,64})";sig=:([A-Za-z0-9+/]{43}=):$');
  expected bytea;
begin
  if parts is null then
    perform fence.refuse('FE400', 'the text is no signed Fencing-Token header', null,
      'Pass the grant''s fencing_token as it is.');
  end if;
  token := parts[1];
  lock := parts[2];
  lease := parts[3];
  namespace := parts[4];
  expected := fence.authenticate(parts[5], concat_ws(E'\n', 'fencepost-token-v1',
    parts[4], parts[2], token::text, lease::text, parts[5], ''));
  -- Compared by a digest, whose time says nothing about the bytes.
  if expected is null or sha256(expected) <> sha256(decode(parts[6], 'base64')) then
    perform fence.refuse('FE401', 'the token''s signature is not valid here',
      format('namespace %s, lock %s, token %s, key %s', namespace, lock, token, parts[5]),
      'Give the database the lock server''s keys: fence.set_key.');
  end if;
end $$;

-- As fence.enter, with a signed header.
create or replace function fence.enter(p_header text) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  fence_token record;
begin
  select * into fence_token from fence.verify(p_header);
  return fence.enter(fence_token.lock, fence_token.token, fence_token.lease, fence_token.namespace);
end $$;

-- As fence.seal, with a signed header.
create or replace function fence.seal(p_header text) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  fence_token record;
begin
  select * into fence_token from fence.verify(p_header);
  return fence.seal(fence_token.lock, fence_token.token, fence_token.lease, fence_token.namespace);
end $$;

-- Checks that this session or transaction has a token for the lock which is the lock's mark, and
-- holds the mark until the transaction ends: anew each time, because ROLLBACK TO may have released
-- it.
create or replace function fence.require_own(p_namespace text, p_lock text) returns void
language plpgsql volatile as $$
declare
  prefix constant text := E'\n' || p_namespace || ' ' || p_lock || ' ';
  setting constant text := current_setting('fence.claims', true);
  owner text := split_part(split_part(E'\n' || substr(setting, 65), prefix, 2), E'\n', 1);
  own_token bigint;
  own_lease uuid;
begin
  if owner <> ''
      and fence.hold(p_namespace, p_lock, owner, substr(setting, 65)) = left(setting, 64) then
    return;
  end if;
  owner := split_part(split_part(E'\n' || fence.claims(), prefix, 2), E'\n', 1);
  if owner <> '' then
    own_token := split_part(owner, ' ', 1);
    own_lease := split_part(owner, ' ', 2);
  else
    select s.token, s.lease into own_token, own_lease from fence.sessions s
      where s.namespace = p_namespace and s.lock = p_lock and s.pid = pg_backend_pid()
      and s.backend_start = fence.start_of(pg_backend_pid());
    if not found then
      perform fence.refuse('FE428', format('no token for lock %s', p_lock),
        format('namespace %s, lock %s', p_namespace, p_lock),
        'Acquire the lock, then SELECT fence.enter(...) in this transaction.');
    end if;
  end if;
  perform fence.hold_or_refuse(p_namespace, p_lock, own_token, own_lease);
end $$;

-- As fence.require_own, for triggers that run as the client.
create or replace function fence.require(p_namespace text, p_lock text) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
  ignored constant text := fence.require_own(p_namespace, p_lock);
begin
end $$;
