// Live sessions, one session with its leases, and its block.

import * as api from './api.js';
import { askReason } from './dialog.js';
import { code, count, empty, facts, h, lockLink, panel, sessionLink, show, since, table, until } from './dom.js';

const PAGE = 50;

const isOfSessions = (event) => Boolean(event.session_id) || ['lineage', 'gap'].includes(event.kind);

function row(session) {
  return {
    cells: [
      sessionLink(session.session_id, session.owner),
      h('span', null, session.blocked ? badge('blocked', 'bad') : badge('live', 'good')),
      since(session.age_ms), until(session.expires_in_ms), String(session.lease_count), session.principal ?? '–',
    ],
  };
}

const badge = (text, tone) => h('span', { class: `badge ${tone}` }, text);

export function sessions({ params }) {
  const after = params.get('after') ?? '';
  const list = h('div', { class: 'list' });
  const element = h('section', { class: 'panel', 'aria-label': 'Sessions' },
    h('div', { class: 'head' }, h('h1', null, 'Sessions'),
      h('p', { class: 'hint' }, 'One heartbeat keeps every lease of a session.')), list);
  const load = async () => {
    const page = await api.get(`v1/sessions${api.query({ after, limit: PAGE })}`);
    show(list,
      page.sessions.length
        ? table('Sessions', ['Owner', 'State', 'Age', 'Ends in', 'Leases', 'Principal'], page.sessions.map(row))
        : empty('No session is live.'),
      h('nav', { class: 'pages', 'aria-label': 'Pages' },
        after ? h('a', { 'data-key': 'first', href: '#/sessions' }, 'First page') : null,
        h('span', { class: 'hint' }, count(page.sessions.length, 'session')),
        page.next_after ? h('a', { 'data-key': 'next', href: `#/sessions${api.query({ after: page.next_after })}` },
          'Next page') : null));
  };
  return { title: 'Sessions', element, load, wants: isOfSessions };
}

export function session({ subject, reload }) {
  const content = h('div', { class: 'stack' });
  const block = h('button', { class: 'danger', type: 'button', hidden: true }, 'Block…');
  const element = h('div', null,
    h('div', { class: 'head' }, h('div', null, h('p', { class: 'over' }, 'Session'),
      h('h1', { class: 'long' }, subject)), block), content);
  block.addEventListener('click', () => askReason({
    title: 'Block this session',
    text: [
      'Its heartbeats are refused from now on. It keeps its locks until its time has passed, so that no other '
        + 'client gets a lock that the holder still believes it holds.',
    ],
    action: 'Block the session',
    done: reload,
    send: async (reason) => {
      const reply = await api.post(`v1/sessions/${encodeURIComponent(subject)}/block`, { reason });
      return h('p', { class: 'notice good' }, 'Blocked. It ends in ', until(reply.expires_in_ms), '.');
    },
  }));
  const load = async () => {
    let shown;
    try {
      shown = await api.get(`v1/sessions/${encodeURIComponent(subject)}`);
    } catch (error) {
      if (![404, 410].includes(error.status)) throw error;
      block.hidden = true;
      show(content, panel('Ended', h('p', null, error.detail), h('p', { class: 'hint' }, error.hint)));
      return;
    }
    block.hidden = Boolean(shown.blocked) || !api.mayAll('block');
    const leases = shown.leases ?? [];
    show(content,
      shown.blocked ? h('p', { class: 'notice bad' }, `Blocked: ${shown.blocked}`) : null,
      panel('State', facts([
        ['Owner', shown.owner], ['Principal', shown.principal],
        ['Ends without a heartbeat in', until(shown.expires_in_ms)], ['A heartbeat restores', `${shown.ttl_ms} ms`],
        ['Age', since(shown.age_ms)], ['Heartbeats', shown.heartbeats],
        ['Metadata', shown.metadata === undefined ? null : code(JSON.stringify(shown.metadata))],
      ])),
      panel(count(shown.lease_count, 'lease or request', 'leases and requests'),
        leases.length ? table('Leases', ['Lock', 'Lease'],
          leases.map((lease) => ({ cells: [lockLink(lease.lock), code(lease.lease_id)] })))
          : empty('It holds no lock.')));
  };
  return {
    title: 'Session', element, load,
    wants: (event) => event.session_id === subject || ['lineage', 'gap'].includes(event.kind),
  };
}
