// Elements, durations and times that tick. Texts from outside become text nodes, never markup.

const SVG = 'http://www.w3.org/2000/svg';

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

// An element: h('a', {href, class, onclick}, child, …).
export const h = (name, attributes, ...children) =>
  filled(document.createElement(name), attributes, children);

// An element of a picture.
export const s = (name, attributes, ...children) =>
  filled(document.createElementNS(SVG, name), attributes, children);

// Replaces what a container shows. The focus stays on the element with the same data-key. While
// text of it is selected nothing changes, so that an id can be copied.
export function show(container, ...children) {
  const selection = getSelection();
  if (selection && !selection.isCollapsed && container.contains(selection.anchorNode)) return;
  const active = document.activeElement;
  const key = container.contains(active) ? active.dataset?.key : null;
  container.replaceChildren(...children.flat(Infinity).filter((child) => child));
  if (key) container.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus();
}

// A duration for people: 850 ms, 12 s, 3 min 4 s, 2 h 5 min, 4 d 1 h.
export function readable(ms) {
  const value = Math.max(0, Math.round(ms));
  if (value < 1000) return `${value} ms`;
  const units = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];
  const seconds = Math.floor(value / 1000);
  if (seconds < 10) return `${(Math.floor(value / 100) / 10).toFixed(1)} s`;
  const at = units.findIndex(([, size]) => seconds >= size);
  const [unit, size] = units[at];
  const whole = `${Math.floor(seconds / size)} ${unit}`;
  const rest = units[at + 1] ? Math.floor((seconds % size) / units[at + 1][1]) : 0;
  return rest ? `${whole} ${rest} ${units[at + 1][0]}` : whole;
}

// A time that goes on by itself: since it was `ms` ago, or until it is in `ms`.
const ticking = (kind, ms, text) => {
  const at = kind === 'since' ? performance.now() - ms : performance.now() + ms;
  const element = h('span', { class: 'time', 'data-kind': kind, 'data-at': at, 'data-text': text });
  tick(element);
  return element;
};

export const since = (ms, text = '') => ticking('since', ms, text);
export const until = (ms, text = '') => ticking('until', ms, text);

function tick(element) {
  const { kind, at, text } = element.dataset;
  const ms = kind === 'since' ? performance.now() - at : at - performance.now();
  // Tenths of a running second only distract.
  const shown = readable(ms < 1000 ? 0 : Math.floor(ms / 1000) * 1000).replace('.0 s', ' s');
  const value = shown === '0 ms' ? (kind === 'since' ? 'now' : 'due') : shown + text;
  if (element.textContent !== value) element.textContent = value;
}

setInterval(() => document.querySelectorAll('[data-at]').forEach(tick), 500);

// A table with a heading for each column; on a phone each cell shows its heading itself.
export function table(label, headings, rows) {
  return h('table', { 'aria-label': label },
    h('thead', null, h('tr', null, headings.map((text) => h('th', { scope: 'col' }, text)))),
    h('tbody', null, rows.map(({ cells, ...attributes }) => h('tr', attributes,
      cells.map((cell, at) => h('td', { 'data-label': headings[at] }, cell))))));
}

// Names and values, without the ones that are missing.
export const facts = (entries) => h('dl', { class: 'facts' },
  entries.filter(([, value]) => value != null && value !== false)
    .map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))));

export const panel = (title, ...children) =>
  h('section', { class: 'panel', 'aria-label': title }, h('h2', null, title), children);

// A panel as wide as the page.
export function widePanel(title, ...children) {
  const section = panel(title, children);
  section.classList.add('wide');
  return section;
}

export const empty = (text) => h('p', { class: 'empty' }, text);

export const code = (text) => h('code', null, String(text));

export const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

export const lockLink = (lock) =>
  h('a', { class: 'name', 'data-key': lock, href: `#/lock/${encodeURIComponent(lock)}` }, lock);

export const sessionLink = (id, text = id) =>
  h('a', { class: 'name', 'data-key': id, href: `#/session/${id}` }, text);

// The error of a request, with what to do next.
export const failure = (error) => h('div', { class: 'notice bad', role: 'alert' },
  h('strong', null, error.detail ?? String(error)), error.hint ? h('p', null, error.hint) : null);
