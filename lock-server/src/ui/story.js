// What happened to a lock: leases with their times, and the sentences that explain them. Pure.

import { count, readable } from './dom.js';

const ENDS = ['released', 'expired', 'revoked', 'superseded', 'session-ended'];

export const MEANINGS = {
  released: 'its holder released it',
  expired: 'its time passed without a renewal',
  revoked: 'an operator ended it',
  superseded: 'its owner took the lock over, or another lease holds it',
  'session-ended': 'the session that it was bound to ended',
};

// Time since an event happened, in milliseconds.
const ago = (event) => event.ms_ago + (event.late_ms ?? 0);

// Leases of the lock in the order of their grants. Times are milliseconds before the reply.
export function leases(lock) {
  const all = new Map();
  const lease = (id) => {
    if (!all.has(id)) all.set(id, { id, refusals: [] });
    return all.get(id);
  };
  for (const event of [...lock.events].reverse()) {
    if (!event.lease_id) continue;
    const one = lease(event.lease_id);
    one.owner ??= event.owner;
    if (event.kind !== 'refused') one.token ??= event.token;
    if (event.kind === 'queued') one.queued = ago(event);
    if (event.kind === 'left') one.left = ago(event);
    if (event.kind === 'granted') one.granted = ago(event);
    if (ENDS.includes(event.kind)) Object.assign(one, { ended: ago(event), reason: event.kind, why: event.text });
  }
  // The store knows best: events of another server may be missing.
  for (const ended of lock.history) {
    if (ended.token == null) continue;
    const { token, reason, why } = ended;
    const one = lease(ended.lease_id);
    one.owner ??= ended.owner;
    one.why ??= why;
    Object.assign(one, { token, reason, ended: ended.ended_ms_ago, granted: ended.ended_ms_ago + ended.held_ms });
  }
  for (const holder of [lock.holder, ...(lock.also_held ?? [])].filter(Boolean)) {
    const { owner, token, held_ms: granted } = holder;
    Object.assign(lease(holder.lease_id), { owner, token, granted, holds: true, ended: undefined });
  }
  for (const waiter of lock.queue) {
    Object.assign(lease(waiter.lease_id), { owner: waiter.owner, queued: waiter.waiting_ms, waits: true });
  }
  for (const refused of lock.refusals) {
    const one = lease(refused.lease_id);
    one.owner ??= refused.owner;
    one.token ??= refused.token;
    one.refusals.push({ ago: ago(refused), mark: refused.mark, text: refused.text ?? 'an operation' });
  }
  const begin = (one) => one.granted ?? one.queued ?? one.refusals[0]?.ago ?? one.ended ?? 0;
  const known = [...all.values()].filter((one) => begin(one) || one.holds || one.waits);
  return known.sort((a, b) => (a.token ?? Infinity) - (b.token ?? Infinity) || begin(b) - begin(a));
}

export const named = ({ owner, token }) =>
  [owner ?? 'an unnamed holder', token == null ? '' : `(token ${token})`].join(' ').trim();

// Refusals of operations whose token was too old, and not of a script's key.
const stale = (one) => one.refusals.filter((refusal) => !refusal.text.endsWith('forbidden'));

function present(lock) {
  const { holder, lease_count: held, queue_length: waiting } = lock;
  const behind = waiting ? ` ${count(waiting, 'request waits', 'requests wait')} behind it.` : '';
  if (!holder) {
    return lock.delayed_ms
      ? { tone: 'warn', text: `It has no holder. Its lock-delay ends in ${readable(lock.delayed_ms)}; then the next acquire is granted.` }
      : { tone: 'plain', text: 'It is free: the next acquire is granted at once.' };
  }
  if (held > 1) return { tone: 'plain', text: `${held} leases hold it together.${behind}` };
  const renewed = holder.renewals ? `renewed ${count(holder.renewals, 'time')}` : 'not renewed yet';
  return { tone: 'good', text: `${named(holder)} has held it for ${readable(holder.held_ms)}, ${renewed}.${behind}` };
}

function past(one, next) {
  const refused = stale(one).filter((refusal) => one.ended == null || refusal.ago <= one.ended);
  const why = one.why ? ` (${one.why})` : '';
  const end = `${named(one)} lost it ${readable(one.ended ?? 0)} ago: ${MEANINGS[one.reason] ?? 'the reason is unknown'}${why}.`;
  const passed = next ? ` Then ${named(next)} got it.` : '';
  if (!refused.length) return { tone: 'plain', text: end + passed };
  const times = count(refused.length, 'operation');
  const who = one.owner ?? 'The former holder';
  return {
    tone: 'bad',
    text: `${end}${passed} ${who} went on writing with token ${one.token}: a guard refused ${times}, and nothing of that was applied.`,
  };
}

// Sentences about the lock, the most important first.
export function sentences(lock, all) {
  const lines = [present(lock)];
  for (const one of all.filter((lease) => lease.holds && stale(lease).length)) {
    const mark = Math.max(...stale(one).map((refusal) => refusal.mark ?? 0));
    lines.push({
      tone: 'bad',
      text: `A guard refuses the holder ${named(one)}: it has seen token ${mark}. The lock server may have lost its memory.`,
    });
  }
  const over = all.filter((one) => one.ended != null).sort((a, b) => a.ended - b.ended);
  const told = over.filter((one, at) => at === 0 || stale(one).length).slice(0, 3);
  for (const one of told) {
    const later = all.filter((other) => other.token > one.token && other.granted <= one.ended + 50);
    lines.push(past(one, later.sort((a, b) => a.token - b.token)[0]));
  }
  return lines;
}

// Safety of the present holder at one guard, by the guard's mark.
export function protection(mark, holder) {
  if (mark == null) return { tone: 'warn', text: 'It has seen no token yet: an earlier holder could still write.' };
  if (!holder) return { tone: 'plain', text: 'Every token below its mark is refused.' };
  if (mark === holder.token) return { tone: 'good', text: 'It has seen the holder: everything earlier is refused.' };
  if (mark > holder.token) return { tone: 'bad', text: 'It refuses the holder: its mark is higher than the token.' };
  return { tone: 'warn', text: 'It has not seen the holder’s token yet: an earlier holder could still write.' };
}
