// The reference of the HTTP API, from the server's own OpenAPI document.

import { get } from '../ui/api.js';
import { code, failure, h, table } from '../ui/dom.js';
import { command, example } from './curl.js';

const main = document.getElementById('main');

const METHODS = ['get', 'post', 'put', 'patch', 'delete'];
// Deeper schemas are named only: none of ours is.
const DEPTH_MAX = 6;

const last = (reference) => reference.split('/').pop();

function resolved(document, value) {
  if (!value?.$ref) return value;
  const found = value.$ref.slice(2).split('/').reduce((part, key) => part?.[key], document);
  return { ...found, ...value, $ref: undefined, named: last(value.$ref) };
}

// The kind of a value in a few words: "integer, 1 to 86400000".
function kind(document, value) {
  const schema = resolved(document, value);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(' | ');
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices && !schema.properties) return choices.map((one) => kind(document, one)).join(' | ');
  if (schema.type === 'array') return `list of ${kind(document, schema.items ?? {})}`;
  const { minimum, maximum, minLength, maxLength } = schema;
  const type = [schema.type ?? 'any JSON'].flat().join(' or ');
  const named = schema.named && schema.properties ? schema.named : schema.format ?? type;
  const range = (from, to, unit) => (to === undefined
    ? from === undefined ? '' : `, from ${from}${unit}` : `, ${from ?? 0} to ${to}${unit}`);
  return named + range(minimum, maximum, '') + range(minLength, maxLength, ' bytes');
}

const inner = (document, value) => {
  const schema = resolved(document, value);
  return schema?.type === 'array' ? inner(document, schema.items ?? {}) : schema;
};

function members(document, value, depth = 0) {
  const schema = inner(document, value);
  const own = Object.entries(schema?.properties ?? {});
  const more = [...(schema?.allOf ?? []), ...(schema?.properties ? schema.anyOf ?? [] : [])];
  if (!own.length && !more.length) return null;
  return h('div', { class: 'members' }, own.map(([name, member]) => {
    const shown = resolved(document, member);
    const isRequired = schema.required?.includes(name);
    const below = depth < DEPTH_MAX ? members(document, member, depth + 1) : null;
    return h('div', null,
      h('p', null, code(name), ' ', h('span', { class: 'hint' }, kind(document, member),
        isRequired ? ', required' : '', shown.default === undefined ? '' : `, default ${JSON.stringify(shown.default)}`)),
      shown.description ? h('p', { class: 'hint' }, shown.description) : null,
      below ? h('details', null, h('summary', { class: 'hint' }, 'members'), below) : null);
  }), more.map((part) => members(document, part, depth + 1)));
}

function body(document, title, content) {
  return Object.entries(content ?? {}).map(([type, { schema }]) => h('details', { open: title === 'Request' },
    h('summary', null, `${title}, `, code(type), ' ', h('span', { class: 'hint' }, schema ? kind(document, schema) : '')),
    schema ? members(document, schema) : null));
}

function operation(document, path, method, shown) {
  const responses = Object.entries(shown.responses).map(([status, value]) => [status, resolved(document, value)]);
  const problems = responses.filter(([, response]) => response.named === 'Problem');
  const others = responses.filter(([, response]) => response.named !== 'Problem');
  const parameters = (shown.parameters ?? []).map((one) => resolved(document, one));
  return h('section', { class: 'panel', id: shown.operationId },
    h('h2', null, h('span', { class: 'method' }, method.toUpperCase()), code(path)),
    h('p', null, shown.summary), example(command(path, method, shown)),
    parameters.length ? table('Parameters', ['Parameter', 'In', 'Value', 'Meaning'], parameters.map((one) => ({
      cells: [code(one.name), one.in, kind(document, one.schema ?? {}), one.description ?? ''],
    }))) : null,
    shown.requestBody ? body(document, 'Request', resolved(document, shown.requestBody).content) : null,
    others.map(([status, response]) => h('div', null,
      h('h3', null, `${status}: ${response.description}`), body(document, 'Reply', response.content))),
    problems.length ? h('p', { class: 'hint' }, 'Problems: ', problems.map(([status]) => status).join(', ')) : null);
}

async function render() {
  const document = await get('openapi.json');
  // The API before what is there for monitoring.
  const paths = Object.entries(document.paths)
    .sort(([a], [b]) => b.startsWith('/v1/') - a.startsWith('/v1/') || a.localeCompare(b));
  const all = paths.flatMap(([path, operations]) =>
    METHODS.filter((method) => operations[method]).map((method) => ({ path, method, shown: operations[method] })));
  const sections = all.map(({ path, method, shown }) => operation(document, path, method, shown));
  const problem = h('section', { class: 'panel', id: 'problems' }, h('h2', null, 'Problems'),
    h('p', null, 'Every error is one of these; branch on its code.'),
    members(document, { $ref: '#/components/schemas/Problem' }));
  main.replaceChildren(
    h('div', { class: 'head' }, h('div', null, h('h1', null, document.info.title), h('p', null, document.info.description))),
    h('nav', { class: 'panel', 'aria-label': 'Operations' }, h('ul', { class: 'jump' },
      all.map(({ path, method, shown }) => h('li', null,
        h('a', { class: 'name', href: `#${shown.operationId}` }, `${method.toUpperCase()} ${path}`))))),
    ...sections, problem);
  // The browser looked for the operation before it was there.
  globalThis.document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

render().catch((error) => main.replaceChildren(failure(error),
  error.status === 401 ? h('p', null, h('a', { href: '../ui/' }, 'Sign in at the console'), ' first, in this tab.') : ''));
