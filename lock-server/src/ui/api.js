// Requests to the API of this server, and its stream of events.

const BASE = '../';
const KEY = 'fencepost-bearer';

// Kept for this tab alone, until it is closed: never in a URL or a cookie, so no link and no other
// page can use it.
let bearer = sessionStorage.getItem(KEY);
let caller = null;

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail);
    Object.assign(this, { status, code: body.code, detail: body.detail, hint: body.hint, body });
  }
}

const headers = (more) => (bearer ? { ...more, authorization: `Bearer ${bearer}` } : more);

async function request(path, options) {
  let reply;
  try {
    reply = await fetch(BASE + path, { ...options, headers: headers(options.headers), cache: 'no-store' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    const detail = 'The lock server does not reply.';
    throw new Problem(0, { code: 'unreachable', detail, hint: 'This page keeps trying.' });
  }
  if (reply.ok) return reply;
  const text = await reply.text();
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    body = { code: 'http', detail: `The reply is ${reply.status}.`, hint: text.slice(0, 400), text };
  }
  throw new Problem(reply.status, body);
}

export const get = async (path, signal) => (await request(path, { signal })).json();

export async function post(path, body) {
  const type = { 'content-type': 'application/json' };
  return (await request(path, { method: 'POST', headers: type, body: JSON.stringify(body) })).json();
}

// A text that comes with 200 or with 503, as of readyz.
export async function readText(path) {
  try {
    return await (await request(path, {})).text();
  } catch (error) {
    if (error.status === 503 && error.body.text) return error.body.text;
    throw error;
  }
}

export const query = (members) => {
  const set = Object.entries(members).filter(([, value]) => value);
  return set.length ? `?${new URLSearchParams(set)}` : '';
};

// Reads who the caller is; a Problem with status 401 asks for a bearer token.
export async function signIn(token) {
  if (token !== undefined) bearer = token || null;
  caller = await get('v1/principal');
  if (bearer) sessionStorage.setItem(KEY, bearer);
  return caller;
}

export function signOut() {
  bearer = null;
  caller = null;
  sessionStorage.removeItem(KEY);
}

export const principal = () => caller?.principal;
export const isSignedIn = () => Boolean(bearer);

// Words of a right that `use` stands for.
const USE = ['read', 'acquire', 'write'];

function patterns(verb) {
  if (!caller?.principal) return ['*'];
  return caller.rights.map((right) => right.split(' ')).filter(([verbs]) =>
    verbs.split(',').some((word) => word === verb || (word === 'use' && USE.includes(verb))))
    .map(([, pattern]) => pattern);
}

// True if the caller has the right on a name. The server decides; this only hides buttons.
export const may = (verb, name) => patterns(verb).some((pattern) =>
  (pattern.endsWith('*') ? name.startsWith(pattern.slice(0, -1)) : name === pattern));

export const mayAll = (verb) => patterns(verb).includes('*');

// The shortest prefix that the caller may list.
export const ownPrefix = () => (mayAll('read') ? '' : patterns('read')
  .filter((pattern) => pattern.endsWith('*')).map((pattern) => pattern.slice(0, -1)).sort((a, b) => a.length - b.length)[0] ?? '');

// Remembered events that are requested: more than the activity shows, as most may be of others.
const RECENT = 500;

const pause = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener('abort', () => { clearTimeout(timer); resolve(); });
});

// Follows the events of the locks under `prefix` until `signal` aborts. The browser's EventSource
// sends no Authorization header, hence fetch. `onState` gets live, connecting or polling.
// A first stream begins with the newest events that the server remembers.
export async function follow(prefix, signal, onEvent, onState) {
  let last = '';
  for (let failures = 0; !signal.aborted; failures += 1) {
    let wait = Math.min(1000 * 2 ** failures, 15000);
    try {
      onState('connecting');
      const resume = last ? { 'last-event-id': last } : {};
      const reply = await request(`v1/events${query({ prefix, recent: RECENT })}`, { signal, headers: resume });
      onState('live');
      failures = 0;
      wait = 1000;
      await read(reply.body, (id, event) => { last = id || last; onEvent(event); });
    } catch (error) {
      if (signal.aborted) return;
      // This server keeps no events, or has no room for another reader: the views still poll.
      if ([401, 403, 429, 501].includes(error.status)) {
        onState('polling', error.detail);
        if (error.status !== 429) return;
        wait = 30000;
      } else onState('connecting');
    }
    await pause(wait, signal);
  }
}

async function read(body, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (text + value).split('\n\n');
    text = blocks.pop();
    for (const block of blocks) {
      const field = (name) => block.split('\n').find((line) => line.startsWith(name))?.slice(name.length);
      const data = field('data: ');
      if (data) onEvent(field('id: '), JSON.parse(data));
    }
  }
}
