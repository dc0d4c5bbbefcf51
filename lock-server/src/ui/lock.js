// One lock: holder, queue, timeline, history, refused writes, marks of the guards.

import * as api from './api.js';
import { askReason } from './dialog.js';
import { code, count, empty, facts, h, panel, readable, sessionLink, show, since, table, until, widePanel } from './dom.js';
import { guarantee } from './guards.js';
import { word } from './locks.js';
import { leases, named, protection, sentences } from './story.js';
import { timeline } from './timeline.js';

const TONES = { held: 'good', free: '', delayed: 'warn' };

const token = (value) => (value == null ? '–' : h('span', { class: 'token' }, value));

function holder(one, lock) {
  const part = Math.max(0, Math.min(1, one.expires_in_ms / one.ttl_ms));
  return h('div', { class: 'holder' },
    h('p', { class: 'lead' }, h('b', null, one.owner), ' ', token(one.token)),
    h('meter', { min: 0, max: 1, low: 0.25, value: part, 'aria-label': 'Part of the lease that is left' }),
    facts([
      ['Lease ends in', until(one.expires_in_ms)], ['Held for', since(one.held_ms)],
      ['Renewals', one.renewals], ['Time to live', readable(one.ttl_ms)],
      ['Mode', lock.size ? `permit, of ${lock.size}` : one.mode], ['Incarnation', one.incarnation],
      ['Session', one.session_id ? sessionLink(one.session_id) : null], ['Lease', code(one.lease_id)],
      ['Metadata', one.metadata === undefined ? null : code(JSON.stringify(one.metadata))],
    ]));
}

function holders(lock) {
  const all = [lock.holder, ...(lock.also_held ?? [])].filter(Boolean);
  const title = all.length > 1 ? `${lock.lease_count} holders` : 'Holder';
  return panel(title, all.length ? all.map((one) => holder(one, lock)) : empty('None.'));
}

const queue = (lock) => panel(`Queue${lock.queue_length ? `, ${lock.queue_length}` : ''}`,
  lock.queue.length
    ? h('ol', { class: 'queue' }, lock.queue.map((waiter) => h('li', null,
      h('b', null, waiter.owner), ' ', h('span', { class: 'hint' }, 'for ', since(waiter.waiting_ms)))))
    : empty('No request waits.'));

function refused(all) {
  const lines = all.flatMap((one) => one.refusals.map((refusal) => ({ one, ...refusal })));
  if (!lines.length) return null;
  lines.sort((a, b) => a.ago - b.ago);
  return widePanel('Refused writes',
    h('p', { class: 'hint' }, 'Reported by guards. None of them was applied.'),
    table('Refused writes', ['When', 'Operation', 'Of', 'Token', 'Mark'], lines.map((line) => ({
      cells: [
        since(line.ago, ' ago'), h('span', { class: 'detail' }, line.text), line.one.owner ?? '–',
        token(line.one.token), token(line.mark),
      ],
    }))));
}

const history = (all) => {
  const over = all.filter((one) => one.ended != null).sort((a, b) => a.ended - b.ended);
  return widePanel('Last leases', over.length
    ? table('Last leases', ['Ended', 'Owner', 'Token', 'Reason', 'Held for'], over.map((one) => ({
      cells: [
        since(one.ended, ' ago'), one.owner ?? '–', token(one.token),
        h('span', null, h('span', { class: `badge ${one.reason}` }, word(one.reason)),
          one.why ? h('span', { class: 'detail' }, one.why) : null),
        one.granted == null ? '–' : h('span', null, readableHeld(one)),
      ],
    })))
    : empty('None is remembered.'));
};

const readableHeld = (one) => `${((one.granted - one.ended) / 1000).toFixed(1)} s`;

function marks(reply, lock) {
  if (!reply) return null;
  if (!reply.guards.length) {
    return panel('Guards', h('p', { class: 'hint' }, 'This server names none (', code('--guard'), ').'));
  }
  return panel('Guards', reply.guards.map((guard) => {
    if (guard.problem) {
      return h('div', { class: 'guard' }, h('p', null, code(guard.guard)), h('p', { class: 'notice bad' }, guard.problem));
    }
    const { mark, refused_total: total, guarantee: promise } = guard.fence;
    const { tone, text } = protection(mark, lock.holder);
    return h('div', { class: 'guard' },
      h('p', null, guarantee(promise), ' ', code(guard.guard)),
      facts([['Mark', mark == null ? 'none' : token(mark)], ['Refused', total]]),
      h('p', { class: `notice ${tone}` }, text));
  }));
}

function outcome(reply) {
  const ended = [reply.token ? reply : null, ...(reply.others ?? [])].filter(Boolean);
  const lines = ended.map((one) => `Token ${one.token} has ended.`);
  if (reply.delay_lifted) lines.push('The lock-delay is lifted.');
  const seals = (reply.guards ?? []).map((seal) => h('p', { class: `notice ${seal.problem ? 'bad' : 'good'}` },
    code(seal.guard), seal.problem ? ` not sealed: ${seal.problem}` : ` sealed at ${seal.mark}`));
  return h('div', null, h('p', { class: 'notice good' }, lines.join(' ')), seals);
}

function ask(name, lock, guards, reload) {
  const known = guards?.guards.length;
  const who = lock.holder ? `${named(lock.holder)} loses the lock now` : 'Its lock-delay is lifted';
  askReason({
    title: `Revoke ${name}`,
    text: [
      `${who}${lock.queue_length ? ', and the first request in the queue gets it' : ''}. The holder is notified at its next renewal.`,
      known ? `Before that, ${count(known, 'guard')} will be sealed, so that its later writes are refused.`
        : 'This server knows no guard to seal: until its successor’s first write at a guard, the old holder can still write.',
    ],
    action: lock.lease_count > 1 ? `Revoke all ${lock.lease_count} leases` : 'Revoke',
    done: reload,
    send: async (reason) => outcome(await api.post(`v1/locks/${encodeURIComponent(name)}/revoke`, { reason })),
  });
}

export function lock({ subject, reload }) {
  const state = h('span', { class: 'badge' });
  const revoke = h('button', { class: 'danger', type: 'button', hidden: true }, 'Revoke…');
  const story = h('div', { class: 'story' });
  const picture = h('div', { class: 'picture' });
  const content = h('div', { class: 'cards' });
  const element = h('div', null,
    h('div', { class: 'head' }, h('div', null, h('p', { class: 'over' }, 'Lock ', state), h('h1', { class: 'long' }, subject)),
      revoke), story, h('section', { class: 'panel', 'aria-label': 'Timeline' }, picture), content);
  let shown = null;
  let guards = null;
  revoke.addEventListener('click', () => ask(subject, shown, guards, reload));

  const draw = () => {
    if (!shown || !picture.clientWidth) return;
    const drawn = timeline(leases(shown), Math.floor(picture.clientWidth));
    show(picture, drawn ?? empty('Nothing is remembered of this lock.'));
  };
  new ResizeObserver(draw).observe(picture);

  const load = async () => {
    readGuards();
    shown = await api.get(`v1/locks/${encodeURIComponent(subject)}`);
    render();
  };
  // Beside the rest: a guard that does not reply takes two seconds.
  let isReading = false;
  const readGuards = async () => {
    if (isReading) return;
    isReading = true;
    try {
      guards = await api.get(`v1/guards${api.query({ lock: subject })}`);
      if (shown) render();
    } catch { /* The last reply stays; what is wrong with the server, the lock's own request says. */ }
    isReading = false;
  };
  const render = () => {
    const all = leases(shown);
    state.className = `badge ${TONES[shown.state]}`;
    state.textContent = shown.state;
    revoke.hidden = shown.state === 'free' || !api.may('revoke', subject);
    show(story, sentences(shown, all).map(({ tone, text }) => h('p', { class: `notice ${tone}` }, text)),
      shown.gap ? h('p', { class: 'notice warn' }, 'Events are missing: ', shown.gap.text ?? 'some',
        ', ', since(shown.gap.ms_ago, ' ago')) : null);
    draw();
    show(content, refused(all), holders(shown), queue(shown), marks(guards, shown), history(all));
  };
  return {
    title: subject, element, load,
    wants: (event) => event.lock === subject || ['lineage', 'gap'].includes(event.kind),
  };
}
