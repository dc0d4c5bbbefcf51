// Held locks by prefix, a page at a time, and what happens to them.

import * as api from './api.js';
import { count, empty, h, lockLink, sessionLink, show, since, table, until } from './dom.js';

const PAGE = 50;
const ACTIVITY_MAX = 60;
const NAME = /^[A-Za-z0-9._:/-]{1,256}$/;

// Events since the page was opened, newest first.
const activity = [];
let latest = null;
let due = null;

const WORDS = {
  granted: 'granted', queued: 'waits', left: 'left the queue', released: 'released', expired: 'expired',
  revoked: 'revoked', superseded: 'superseded', 'session-ended': 'session ended', refused: 'refused',
  'session-begun': 'session began', 'session-closed': 'session closed', 'session-blocked': 'session blocked',
  lineage: 'store may have lost data', gap: 'events are missing', dropped: 'stream was too slow',
};

export const word = (kind) => WORDS[kind] ?? kind;

function line({ event, at }) {
  const who = [event.owner, event.token && `token ${event.token}`].filter(Boolean).join(', ');
  const of = event.session_id && api.mayAll('read') ? sessionLink(event.session_id, 'session') : null;
  return h('li', { 'data-kind': event.kind },
    h('p', null, h('b', null, word(event.kind)), ' ', event.lock ? lockLink(event.lock) : of),
    h('p', { class: 'hint' }, who, who && ' · ', since(performance.now() - at, ' ago'),
      event.text ? h('span', { class: 'detail' }, event.text) : null));
}

const showActivity = () => latest && show(latest, activity.length
  ? h('ol', { class: 'activity' }, activity.map(line))
  : empty('Nothing yet. Grants, ends and refused writes appear here as they happen.'));

function row(lock) {
  return {
    'data-waiting': lock.queue_length > 0,
    cells: [
      lockLink(lock.lock), lock.owner, since(lock.held_ms), until(lock.expires_in_ms),
      lock.queue_length ? h('b', { class: 'waiting' }, lock.queue_length) : '0',
      h('span', { class: 'token' }, lock.token),
    ],
  };
}

const address = (prefix, after) => `#/locks${api.query({ prefix, after })}`;

export function locks({ params, reload }) {
  const prefix = params.get('prefix') ?? api.ownPrefix();
  const after = params.get('after') ?? '';
  const list = h('div', { class: 'list' });
  const input = h('input', {
    id: 'search', type: 'search', value: prefix, placeholder: 'orders/42, or press /', autocomplete: 'off',
    spellcheck: 'false', title: 'Press / to search, Enter to open a lock by its whole name',
  });
  const search = h('form', { class: 'search', role: 'search' },
    h('label', { for: 'search' }, 'Name begins with'), input);
  let timer;
  // The address changes without a new view, so that typing is not interrupted.
  const typed = () => {
    history.replaceState(null, '', address(input.value.trim(), ''));
    reload();
  };
  input.addEventListener('input', () => { clearTimeout(timer); timer = setTimeout(typed, 200); });
  search.addEventListener('submit', (event) => {
    event.preventDefault();
    if (NAME.test(input.value.trim())) location.hash = `#/lock/${encodeURIComponent(input.value.trim())}`;
  });
  latest = h('div', null);
  showActivity();

  async function load() {
    const own = { prefix: input.value.trim(), after: input.value.trim() === prefix ? after : '' };
    const page = await api.get(`v1/locks${api.query({ ...own, limit: PAGE })}`);
    show(list, ...rendered(page, own));
  }

  if (params.get('focus')) setTimeout(() => input.focus());
  const element = h('div', { class: 'columns' },
    h('section', { class: 'panel', 'aria-label': 'Held locks' },
      h('div', { class: 'head' }, h('h1', null, 'Locks'), search), list),
    h('section', { class: 'panel', 'aria-label': 'Activity' }, h('h2', null, 'Activity'), latest));
  return { title: 'Locks', element, load, wants: (event) => event.kind !== 'refused' };
}

function rendered(page, { prefix, after }) {
  const isListed = page.locks.some((lock) => lock.lock === prefix);
  // A free lock is in no list, and still has a history.
  const open = NAME.test(prefix) && !prefix.endsWith('/') && !isListed
    ? h('p', { class: 'open' }, 'Not held: ', lockLink(prefix), ' — open its history') : null;
  const from = after ? ` after ${after}` : '';
  return [
    open,
    page.locks.length
      ? table('Held locks', ['Lock', 'Owner', 'Held for', 'Lease ends in', 'Waiting', 'Token'], page.locks.map(row))
      : empty(page.next_after ? 'No held lock on this page.'
        : prefix ? 'No held lock begins with this.' : 'No lock is held. One appears here as soon as it is granted.'),
    h('nav', { class: 'pages', 'aria-label': 'Pages' },
      after ? h('a', { 'data-key': 'first', href: address(prefix) }, 'First page') : null,
      h('span', { class: 'hint' }, `${count(page.locks.length, 'lock')}${from}`),
      page.next_after
        ? h('a', { 'data-key': 'next', href: address(prefix, page.next_after) }, 'Next page') : null),
  ];
}

// Drops what the next principal of this tab may not see.
locks.forget = () => { activity.length = 0; };

// Takes note of an event for the list of what happens.
locks.remember = (event) => {
  if (['ready', 'unknown'].includes(event.kind)) return;
  activity.unshift({ event, at: performance.now() - event.ms_ago - (event.late_ms ?? 0) });
  activity.length = Math.min(activity.length, ACTIVITY_MAX);
  // A thousand events a second are shown four times a second.
  due ??= setTimeout(() => { due = null; showActivity(); }, 250);
};
