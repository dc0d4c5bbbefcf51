// The shell of the console: sign-in, the view that the address names, and its renewal by events.

import * as api from './api.js';
import { failure, h, show } from './dom.js';
import { guards } from './guards.js';
import { lock } from './lock.js';
import { locks } from './locks.js';
import { service, summary } from './service.js';
import { session, sessions } from './sessions.js';

// A view is renewed when an event concerns it, and so often in any case: renewals have no events.
const POLL_MS = 5000;
// Views are not renewed more often than this, however many events come.
const PAUSE_MS = 400;

const main = document.getElementById('main');
const live = document.getElementById('live');
const health = document.getElementById('health');

const VIEWS = { locks, lock, sessions, session, guards, service };
const NAVIGATION = [
  ['locks', 'Locks', () => true],
  ['sessions', 'Sessions', () => api.mayAll('read')],
  ['guards', 'Guards', () => api.mayAll('read')],
  ['service', 'Service', () => true],
];

let current = null;
let stream = null;

// `#/lock/orders%2F42?after=x`: a view, its subject and its parameters.
function place() {
  const [path, params] = location.hash.replace(/^#\/?/, '').split('?');
  const [name, subject = ''] = path.split('/');
  let decoded = subject;
  try {
    decoded = decodeURIComponent(subject);
  } catch { /* It stays as it is; the server says what is wrong with it. */ }
  return { name: Object.hasOwn(VIEWS, name) ? name : 'locks', subject: decoded, params: new URLSearchParams(params) };
}

function navigate() {
  const { name, subject, params } = place();
  current?.stop();
  const container = h('div', { class: 'view' });
  const view = VIEWS[name]({ subject, params, reload: () => renew() });
  container.append(view.element);
  main.replaceChildren(container);
  document.title = `${view.title} · Fencepost`;
  for (const link of document.querySelectorAll('nav a')) {
    const isIn = link.dataset.view === name || `${link.dataset.view}` === `${name}s`;
    if (isIn) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  current = renewed(view);
  renew();
}

// Renews a view, never twice at a time; what comes meanwhile is done once afterwards.
function renewed(view) {
  let timer = null;
  let isLoading = false;
  let isWanted = false;
  let isSoon = false;
  let isStopped = false;
  let loaded = -PAUSE_MS;
  const trouble = h('div', null);
  view.element.prepend(trouble);
  const load = async () => {
    clearTimeout(timer);
    isSoon = false;
    if (isLoading) {
      isWanted = true;
      return;
    }
    isLoading = true;
    try {
      await view.load();
      trouble.replaceChildren();
    } catch (error) {
      if (error.status === 401) signInAgain();
      else if (!isStopped) trouble.replaceChildren(failure(error));
    }
    isLoading = false;
    loaded = performance.now();
    if (isStopped) return;
    plan(isWanted ? Math.max(PAUSE_MS, view.pauseMs?.() ?? 0) : POLL_MS);
    isWanted = false;
  };
  const plan = (ms) => {
    clearTimeout(timer);
    timer = setTimeout(() => (document.hidden ? plan(POLL_MS) : load()), ms);
  };
  return {
    load,
    onEvent: (event) => {
      if (!view.wants(event)) return;
      if (isLoading) isWanted = true;
      else if (!isSoon) {
        isSoon = true;
        const pause = Math.max(PAUSE_MS, view.pauseMs?.() ?? 0);
        plan(Math.max(100, loaded + pause - performance.now()));
      }
    },
    stop: () => {
      isStopped = true;
      clearTimeout(timer);
    },
  };
}

const renew = () => current?.load();

const STATES = {
  live: ['Live', 'Changes show as they happen'],
  connecting: ['Connecting', 'The stream of events is opened again'],
  polling: ['Every 5 s', 'There is no stream of events'],
};

function showState(state, why) {
  const [text, title] = STATES[state];
  live.dataset.state = state;
  live.title = why ?? title;
  if (live.textContent !== text) live.textContent = text;
}

// A hidden page reads no events: browsers and servers both have few streams.
function followEvents() {
  stream?.abort();
  stream = null;
  if (document.hidden) return;
  stream = new AbortController();
  // A new stream begins with what the server remembers.
  locks.forget();
  api.follow(api.ownPrefix(), stream.signal, (event) => {
    locks.remember(event);
    current?.onEvent(event);
  }, showState);
}

async function showHealth() {
  if (!document.hidden) {
    const { state, text } = await summary();
    health.hidden = false;
    health.dataset.state = state;
    health.textContent = text;
  }
}

function signInAgain() {
  stream?.abort();
  current?.stop();
  current = null;
  api.signOut();
  locks.forget();
  showCaller();
  askToken('The bearer token is no longer valid.');
}

function askToken(problem) {
  const input = h('input', { id: 'token', type: 'password', required: true, autocomplete: 'off', spellcheck: 'false' });
  const result = h('div', { role: 'alert' }, problem ? h('p', { class: 'notice bad' }, problem) : null);
  const form = h('form', { class: 'panel sign-in' },
    h('h1', null, 'Sign in'),
    h('p', null, 'This server has an access file. What you see and may do are the rights of your principal.'),
    h('label', { for: 'token' }, 'Bearer token'), input,
    h('p', { class: 'hint' }, 'Kept in this tab until you close it or sign out.'),
    result, h('button', { class: 'primary', type: 'submit' }, 'Sign in'));
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    try {
      await api.signIn(input.value.trim());
      start();
    } catch (error) {
      input.value = '';
      show(result, failure(error));
    }
  });
  main.replaceChildren(form);
  document.title = 'Sign in · Fencepost';
  input.focus();
}

function showCaller() {
  const name = api.principal();
  const element = document.getElementById('principal');
  element.hidden = !name;
  element.textContent = name ?? '';
  document.getElementById('sign-out').hidden = !api.isSignedIn();
  const isKnown = main.querySelector('.sign-in') === null;
  document.getElementById('nav').replaceChildren(...NAVIGATION.filter(([, , isOpen]) => isOpen())
    .map(([view, text]) => h('a', { href: `#/${view}`, 'data-view': view, hidden: !isKnown }, text)));
}

function start() {
  main.replaceChildren();
  showCaller();
  navigate();
  followEvents();
  showHealth();
}

async function begin() {
  try {
    await api.signIn();
    start();
  } catch (error) {
    if (error.status === 401) askToken();
    else {
      main.replaceChildren(failure(error));
      setTimeout(begin, 2000);
    }
  }
}

addEventListener('hashchange', () => {
  if (!current) return;
  navigate();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
document.addEventListener('visibilitychange', () => {
  if (!current) return;
  followEvents();
  if (!document.hidden) renew();
});
document.addEventListener('keydown', (event) => {
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
  if (event.key !== '/' || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const search = document.getElementById('search');
  if (search) search.focus();
  else if (current) location.hash = '#/locks?focus=1';
});
document.getElementById('skip').addEventListener('click', () => main.focus());
document.getElementById('sign-out').addEventListener('click', () => {
  signInAgain();
  show(main.querySelector('[role=alert]'), h('p', { class: 'notice' }, 'Signed out.'));
});
setInterval(() => current && showHealth(), POLL_MS);
begin();
