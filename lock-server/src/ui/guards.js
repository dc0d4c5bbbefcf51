// Guards as the lock server sees them: stores with their guarantees, marks, refusals.

import * as api from './api.js';
import { code, count, empty, facts, h, lockLink, panel, show, table } from './dom.js';

const TONES = { atomic: 'good', bounded: 'warn', observe: 'bad' };
const MEANINGS = {
  atomic: 'the store itself checks the token in the same step',
  bounded: 'the guard drains, and trusts the stated request lifetime',
  observe: 'nothing is refused: stale writes are applied and counted',
};

export const guarantee = (word) =>
  h('span', { class: `badge ${TONES[word] ?? ''}`, title: MEANINGS[word] }, word);

// A gap that a setting closes is a warning; one that every such store has is only said.
function store(entry) {
  const avoidable = entry.avoidable ?? [];
  const gaps = entry.gaps.filter((gap) => !avoidable.includes(gap));
  return h('div', { class: 'store' },
    h('p', null, guarantee(entry.guarantee), ' ', h('b', null, entry.kind), ' ', code(entry.target)),
    facts([
      ['Served at', entry.fronts.map((front) => `${front.kind} ${front.listen}`).join(', ')],
      ['Probe', entry.probe],
    ]),
    avoidable.map((gap) => h('p', { class: 'notice warn' }, gap)),
    gaps.length ? [h('h3', null, 'What could void it'),
      h('ul', { class: 'gaps' }, gaps.map((gap) => h('li', null, gap)))] : null);
}

function addressed(guard, ...children) {
  const section = panel(guard.guard, children);
  section.classList.add('address');
  return section;
}

function card(guard, prefix) {
  if (guard.problem) {
    return addressed(guard, h('p', { class: 'notice bad' }, h('strong', null, 'No reply: '), guard.problem));
  }
  const { stores, marks } = guard;
  const observes = stores.mode === 'observe';
  return addressed(guard,
    observes ? h('p', { class: 'notice warn' }, 'It observes: stale writes are applied.') : null,
    facts([['Namespace', stores.namespace], ['Highest mark', marks.highest_mark ?? 'none']]),
    stores.stores.map(store),
    (stores.would_refuse ?? []).map((line) =>
      h('p', { class: 'notice warn' }, `Would refuse: rule ${line.rule}, ${line.code}, ${count(line.total, 'time')}`)),
    h('h3', null, 'Marks'),
    marks.fences.length
      ? table(`Marks of ${guard.guard}`, ['Lock', 'Mark', 'Refused'], marks.fences.map((fence) => ({
        cells: [
          lockLink(fence.lock), h('span', { class: 'token' }, fence.mark),
          fence.refused_total ? h('b', { class: 'refused' }, fence.refused_total) : '0',
        ],
      })))
      : empty(prefix ? 'No mark begins with this.' : 'It has seen no token.'),
    marks.next_after ? h('p', { class: 'hint' }, 'There are more: narrow the prefix.') : null);
}

export function guards({ params, reload }) {
  const list = h('div', { class: 'cards' });
  const input = h('input', {
    id: 'search', type: 'search', placeholder: 'orders/', autocomplete: 'off', spellcheck: 'false',
    value: params.get('prefix') ?? '',
  });
  const load = async () => {
    const prefix = input.value.trim();
    const reply = await api.get(`v1/guards${api.query({ prefix })}`);
    show(list, ...reply.guards.map((guard) => card(guard, prefix)),
      reply.guards.length ? null : panel('None', h('p', null,
        'This server names no guards. With ', code('--guard'), ' they are shown here, and are sealed '
        + 'before a lease is revoked. Without a guard, a stalled holder’s late write is not refused.')));
  };
  let timer;
  input.addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      history.replaceState(null, '', `#/guards${api.query({ prefix: input.value.trim() })}`);
      reload();
    }, 200);
  });
  const search = h('form', { class: 'search', role: 'search', onsubmit: (event) => event.preventDefault() },
    h('label', { for: 'search' }, 'Lock begins with'), input);
  const element = h('div', null, h('div', { class: 'head' }, h('h1', null, 'Guards'), search), list);
  return { title: 'Guards', element, load, wants: (event) => event.kind === 'refused' };
}
