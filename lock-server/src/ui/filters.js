// Search, filters, order and tree of the list of locks: controls, and the query that they make.

import { h } from './dom.js';

const MEMBERS = ['prefix', 'filter', 'owner', 'sort', 'tree'];

const FILTERS = [['', 'All'], ['held', 'Held'], ['waiting', 'With waiters'], ['refused', 'With refused writes']];
const ORDERS = [['', 'Name'], ['queue', 'Longest queue'], ['age', 'Held longest'], ['refusals', 'Most refused']];

const select = (id, options, value) => h('select', { id },
  options.map(([word, text]) => h('option', { value: word, selected: word === value }, text)));

const labelled = (text, control) => h('span', { class: 'control' }, h('label', { for: control.id }, text), control);

// The controls, filled from the parameters of the address. `changed` runs after each change.
export function controls(params, ownPrefix, changed) {
  const value = (name) => params.get(name) ?? '';
  const prefix = h('input', {
    id: 'search', type: 'search', value: params.get('prefix') ?? ownPrefix, placeholder: 'orders/42, or press /', autocomplete: 'off',
    spellcheck: 'false', title: 'Press / to search, Enter to open a lock by its whole name',
  });
  const filter = select('filter', FILTERS, value('filter'));
  const owner = h('input', {
    id: 'owner', type: 'search', value: value('owner'), placeholder: 'part of a name', autocomplete: 'off', spellcheck: 'false',
  });
  const sort = select('sort', ORDERS, value('sort'));
  const tree = h('input', { id: 'tree', type: 'checkbox', checked: Boolean(value('tree')) });
  let timer;
  const typed = () => { clearTimeout(timer); timer = setTimeout(changed, 200); };
  for (const control of [prefix, owner]) control.addEventListener('input', typed);
  for (const control of [filter, sort, tree]) control.addEventListener('change', changed);
  return {
    prefix,
    search: h('form', { class: 'search', role: 'search' }, h('label', { for: 'search' }, 'Name begins with'), prefix),
    rest: h('div', { class: 'controls', role: 'group', 'aria-label': 'Filters' },
      labelled('Show', filter), labelled('Owner', owner), labelled('Order', sort),
      h('span', { class: 'control' }, tree, h('label', { for: 'tree' }, 'Tree by /'))),
    read: () => ({
      prefix: prefix.value.trim(), filter: filter.value, owner: owner.value.trim(), sort: sort.value,
      tree: tree.checked ? '1' : '',
    }),
  };
}

// True if two choices list the same.
export const isSame = (one, other) => MEMBERS.every((name) => (one[name] ?? '') === (other[name] ?? ''));

// True if the server reads more locks for a page than are shown.
export const isSearch = ({ filter, owner, sort, tree }) => Boolean(filter || owner || sort || tree);

// Locks of a page below `prefix`, those with a further `/` as folders, with sums of their locks.
export function folders(locks, prefix) {
  const found = new Map();
  const files = [];
  for (const lock of locks) {
    const end = lock.lock.indexOf('/', prefix.length) + 1;
    if (!end) {
      files.push(lock);
      continue;
    }
    const name = lock.lock.slice(0, end);
    const folder = found.get(name) ?? { name, locks: 0, waiting: 0, refusals: 0 };
    folder.locks += 1;
    folder.waiting += lock.queue_length;
    folder.refusals += lock.refusals ?? 0;
    found.set(name, folder);
  }
  return { folders: [...found.values()], files };
}
