// The page of guarantees that belongs to this version, from its Markdown.

import { failure, h } from '../ui/dom.js';

const main = document.getElementById('main');

const SPAN = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|\[([^\]]+)\]\(([^)]*)\)/;

// Text with code, emphasis and links; links to pages that are not here are their text.
function inline(text) {
  const found = SPAN.exec(text);
  if (!found) return [text];
  const [all, code, strong, soft, link, target] = found;
  let part;
  if (code !== undefined) part = h('code', null, code);
  else if (strong !== undefined) part = h('b', null, inline(strong));
  else if (soft !== undefined) part = h('i', null, inline(soft));
  else part = target.startsWith('#') ? h('a', { href: target }, inline(link)) : h('span', null, inline(link));
  return [text.slice(0, found.index), part, ...inline(text.slice(found.index + all.length))];
}

const slug = (text) => text.toLowerCase().replace(/[^a-z0-9 -]/g, '').replaceAll(' ', '-');

const cells = (line) => line.slice(1, -1).split(' | ').map((cell) => cell.trim());

function table([head, , ...rows]) {
  const names = cells(head);
  return h('div', { class: 'wide' }, h('table', null,
    h('thead', null, h('tr', null, names.map((name) => h('th', { scope: 'col' }, inline(name))))),
    h('tbody', null, rows.map((row) => h('tr', null,
      cells(row).map((cell, at) => h('td', { 'data-label': names[at] }, inline(cell))))))));
}

const item = (line) => h('li', null, inline(line.replace(/^(-|\d+\.) /, '')));

function block(text) {
  const lines = text.split('\n');
  const heading = /^(#+) (.*)$/.exec(text);
  if (heading) return h(`h${Math.min(3, heading[1].length)}`, { id: slug(heading[2]) }, inline(heading[2]));
  if (text.startsWith('|')) return table(lines);
  if (text.startsWith('- ')) return h('ul', null, lines.map(item));
  if (/^\d+\. /.test(text)) return h('ol', null, lines.map(item));
  return h('p', null, lines.flatMap((line) => [...inline(line), ' ']));
}

async function render() {
  const reply = await fetch('guarantees.md', { cache: 'no-store' });
  const text = await reply.text();
  main.replaceChildren(h('section', { class: 'panel' }, text.trim().split(/\n\n+/).map(block)));
  // The browser looked for the part before it was there.
  document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

render().catch((error) => main.replaceChildren(failure(error)));
