// Locks by prefix, filter and owner, a page at a time, and what happens to them.

import * as api from './api.js';
import { count, empty, h, lockLink, sessionLink, show, since, table, until } from './dom.js';
import { controls, folders, isSame, isSearch } from './filters.js';

const PAGE = 50;
// Locks that the server reads for a page with a filter, an order or folders, and rows of it shown.
const SEARCHED = 1000;
const ROWS_MAX = 200;
// A search costs more than a page: it is renewed by events no more often than this.
const SEARCH_PAUSE_MS = 2000;
const ACTIVITY_MAX = 60;
const NAME = /^[A-Za-z0-9._:/-]{1,256}$/;

// The newest events, newest first.
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

// How a lock is in use: `3 of 5 permits`, `2 readers`.
export function use({ lease_count: held = 1, size, mode, owner }) {
  if (size) return `${held} of ${size} permits`;
  if (mode === 'shared' && held) return count(held, 'reader');
  return held ? 'exclusive' : owner ? 'lock-delay' : 'free';
}

const number = (value, tone) => (value ? h('b', { class: tone }, value) : '0');

function row(lock) {
  return {
    'data-waiting': lock.queue_length > 0, 'data-refused': Boolean(lock.refusals),
    cells: [
      lockLink(lock.lock), use(lock), lock.owner ?? '–', lock.owner ? since(lock.held_ms) : '–',
      lock.owner ? until(lock.expires_in_ms) : '–', number(lock.queue_length, 'waiting'),
      number(lock.refusals, 'refused'), lock.token ? h('span', { class: 'token' }, lock.token) : '–',
    ],
  };
}

const HEADINGS = ['Lock', 'In use as', 'Owner', 'Held for', 'Lease ends in', 'Waiting', 'Refused', 'Token'];

function folderRow(folder, choice) {
  const { name } = folder;
  return {
    'data-refused': folder.refusals > 0,
    cells: [
      h('a', { class: 'name', 'data-key': name, href: address({ ...choice, prefix: name }) }, name),
      count(folder.locks, 'lock'), number(folder.waiting, 'waiting'), number(folder.refusals, 'refused'),
    ],
  };
}

// The folders above a prefix, each a link.
function path(choice) {
  const parts = choice.prefix.split('/').slice(0, -1);
  const above = parts.map((part, at) => [`${part}/`, `${parts.slice(0, at + 1).join('/')}/`]);
  return h('nav', { class: 'path', 'aria-label': 'Folders above' }, [['all', ''], ...above].map(([text, prefix]) =>
    h('a', { class: 'name', 'data-key': `up ${prefix}`, href: address({ ...choice, prefix }) }, text)));
}

const address = (choice, after) => `#/locks${api.query({ ...choice, after })}`;

export function locks({ params, reload }) {
  const after = params.get('after') ?? '';
  const list = h('div', { class: 'list' });
  // The address changes without a new view, so that typing is not interrupted.
  const changed = () => {
    history.replaceState(null, '', address(control.read()));
    reload();
  };
  const control = controls(params, api.ownPrefix(), changed);
  const begun = control.read();
  control.search.addEventListener('submit', (event) => {
    event.preventDefault();
    const name = control.prefix.value.trim();
    if (NAME.test(name)) location.hash = `#/lock/${encodeURIComponent(name)}`;
  });
  latest = h('div', null);
  showActivity();

  async function load() {
    const choice = control.read();
    const from = isSame(choice, begun) ? after : '';
    const { tree, ...query } = choice;
    const page = await api.get(`v1/locks${api.query({ ...query, after: from, limit: isSearch(choice) ? SEARCHED : PAGE })}`);
    show(list, ...rendered(page, choice, from));
  }

  if (params.get('focus')) setTimeout(() => control.prefix.focus());
  const element = h('div', { class: 'columns' },
    h('section', { class: 'panel', 'aria-label': 'Locks' },
      h('div', { class: 'head' }, h('h1', null, 'Locks'), control.search), control.rest, list),
    h('section', { class: 'panel', 'aria-label': 'Activity' }, h('h2', null, 'Activity'), latest));
  return {
    title: 'Locks', element, load, wants: () => true,
    pauseMs: () => (isSearch(control.read()) ? SEARCH_PAUSE_MS : 0),
  };
}

function none(page, choice) {
  if (page.next_after) return 'No such lock on this page.';
  if (choice.filter || choice.owner) return 'No such lock.';
  return choice.prefix ? 'No held lock begins with this.' : 'No lock is held. One appears here as soon as it is granted.';
}

function rendered(page, choice, after) {
  const { prefix } = choice;
  const isListed = page.locks.some((lock) => lock.lock === prefix);
  // A free lock is in no list, and still has a history.
  const open = NAME.test(prefix) && !prefix.endsWith('/') && !isListed
    ? h('p', { class: 'open' }, 'Not listed: ', lockLink(prefix), ' — open its history') : null;
  const { folders: above, files } = choice.tree ? folders(page.locks, prefix) : { folders: [], files: page.locks };
  const cut = files.length > ROWS_MAX ? `, ${ROWS_MAX} shown` : '';
  const searched = !isSearch(choice) || !page.next_after ? ''
    : choice.filter === 'refused' ? '; more had refused writes' : ` of ${SEARCHED} that were read; more follow`;
  return [
    open,
    choice.tree ? path(choice) : null,
    above.length ? table('Folders', ['Folder', 'Locks', 'Waiting', 'Refused'], above.map((one) => folderRow(one, choice))) : null,
    files.length ? table('Locks', HEADINGS, files.slice(0, ROWS_MAX).map(row))
      : above.length ? null : empty(none(page, choice)),
    h('nav', { class: 'pages', 'aria-label': 'Pages' },
      after ? h('a', { 'data-key': 'first', href: address(choice) }, 'First page') : null,
      h('span', { class: 'hint' }, `${count(page.locks.length, 'lock')}${cut}${searched}${after ? ` after ${after}` : ''}`),
      page.next_after
        ? h('a', { 'data-key': 'next', href: address(choice, page.next_after) }, 'Next page') : null),
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
