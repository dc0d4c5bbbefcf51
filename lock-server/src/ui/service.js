// The lock server itself: what its checks say, and the guarantee that applies.

import { get, readText } from './api.js';
import { h, panel, show } from './dom.js';

const TONES = { '+': 'good', '!': 'warn', '-': 'bad' };

// The lines of /readyz?verbose: [+]name text.
function checks(text) {
  const lines = text.split('\n').map((line) => /^\[([+!-])\](\S+) (.*)$/.exec(line)).filter(Boolean);
  return lines.map(([, sign, name, said]) =>
    ({ tone: TONES[sign], name, said: said.replace(/^(warning|failed): /, '') }));
}

const read = async () => checks(await readText('readyz?verbose'));

// Health in two words, for every view.
export async function summary() {
  try {
    const all = await read();
    const failing = all.filter((check) => check.tone === 'bad').length;
    const warnings = all.filter((check) => check.tone === 'warn').length;
    if (failing) return { state: 'bad', text: 'Not ready' };
    if (warnings) return { state: 'warn', text: `${warnings} warning${warnings === 1 ? '' : 's'}` };
    return { state: 'good', text: 'Ready' };
  } catch {
    return { state: 'bad', text: 'Unreachable' };
  }
}

const SIGNS = { good: 'ok', warn: 'warning', bad: 'failing' };
const ORDER = ['bad', 'warn', 'good'];

const check = ({ tone, name, said }) => h('li', { class: tone },
  h('span', { class: `badge ${tone}` }, SIGNS[tone]), h('div', null, h('b', null, name), h('p', null, said)));

// engine: tokens; leases; availability (page)
function guarantee({ said }) {
  const [, engine, text, page] = /^([^:]+): (.*?)(?: \(([^)]*)\))?$/.exec(said) ?? [null, '', said, null];
  return panel('Guarantee',
    h('p', null, h('span', { class: 'badge' }, engine)),
    h('ul', { class: 'plain' }, text.split('; ').map((part) => h('li', null, part))),
    page ? h('p', { class: 'hint' }, h('a', { href: `../docs/guarantees.html${page.replace(/^[^#]*/, '')}` }, 'The whole table')) : null);
}

export function service() {
  const content = h('div', { class: 'cards' });
  const version = h('p', { class: 'hint' });
  const element = h('div', null,
    h('div', { class: 'head' }, h('h1', null, 'Service'), version), content);
  const load = async () => {
    const all = await read();
    const row = all.find((entry) => entry.name === 'guarantee');
    const others = all.filter((entry) => entry !== row);
    others.sort((a, b) => ORDER.indexOf(a.tone) - ORDER.indexOf(b.tone));
    show(content,
      panel('Checks', others.length ? h('ul', { class: 'checks' }, others.map(check)) : h('p', null, 'All is well.')),
      row ? guarantee(row) : null,
      panel('API', h('p', null, h('a', { href: '../docs/' }, 'Reference of the HTTP API'))));
    const { name, version: number } = await get('version');
    show(version, `${name} ${number}`);
  };
  return { title: 'Service', element, load, wants: (event) => event.kind === 'lineage' };
}
