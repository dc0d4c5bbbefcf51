// An example of each call of the API, as a command to copy.

import { isSignedIn } from '../ui/api.js';
import { h } from '../ui/dom.js';

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// The command for an operation at this server, with the examples of its document.
export function command(path, method, shown) {
  const parameters = shown.parameters ?? [];
  const named = parameters.filter((one) => one.in === 'path')
    .reduce((text, one) => text.replace(`{${one.name}}`, encodeURIComponent(one.example)), path);
  const set = parameters.filter((one) => one.in === 'query' && one.example !== undefined);
  const query = set.length ? `?${new URLSearchParams(set.map((one) => [one.name, one.example]))}` : '';
  const url = new URL(`..${named}${query}`, location.href).href;
  const body = shown.requestBody?.content['application/json']?.example;
  return [
    'curl', shown.responses['200']?.content?.['text/event-stream'] ? '-sN' : '-s',
    method === (body ? 'post' : 'get') ? null : `-X ${method.toUpperCase()}`, quoted(url),
    // The token itself would end in notes and histories.
    isSignedIn() ? '-H "Authorization: Bearer $TOKEN"' : null,
    body ? `-H 'content-type: application/json' -d ${quoted(JSON.stringify(body))}` : null,
  ].filter(Boolean).join(' ');
}

// The command with a button that copies it.
export function example(text) {
  const line = h('code', { class: 'curl' }, text);
  const button = h('button', {
    type: 'button',
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = 'Copied';
      } catch {
        // Without TLS a browser may lend no clipboard: the command is ready for Ctrl+C.
        getSelection().selectAllChildren(line);
        button.textContent = 'Selected: press Ctrl+C';
      }
    },
  }, 'Copy as curl');
  return h('div', { class: 'example' }, line, button);
}
