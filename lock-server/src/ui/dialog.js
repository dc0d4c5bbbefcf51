// A question before an act that takes something away: it needs a reason, which is recorded.

import { failure, h, show } from './dom.js';

// Owners and reasons have at most this many bytes.
const REASON_BYTES = 256;

// Asks for a reason and sends it; `send(reason)` returns what the dialog then shows.
export function askReason({ title, text, action, send, done }) {
  const result = h('div', { class: 'result', 'aria-live': 'polite' });
  const input = h('input', {
    id: 'reason', name: 'reason', required: true, autocomplete: 'off', maxlength: REASON_BYTES,
    placeholder: 'host is replaced, ticket 4711',
  });
  const submit = h('button', { class: 'danger', type: 'submit' }, action);
  const cancel = h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel');
  const form = h('form', null,
    h('h2', { id: 'dialog-title' }, title), text.map((line) => h('p', null, line)),
    h('label', { for: 'reason' }, 'Reason, for the holder, the history and the audit log'), input,
    result, h('p', { class: 'buttons' }, cancel, submit));
  const dialog = h('dialog', { 'aria-labelledby': 'dialog-title', onclose: () => dialog.remove() }, form);
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const reason = input.value.trim();
    input.setCustomValidity(new TextEncoder().encode(reason).length > REASON_BYTES
      ? `At most ${REASON_BYTES} bytes.` : reason ? '' : 'Say why: it is recorded.');
    if (!form.reportValidity()) return;
    submit.disabled = true;
    try {
      show(result, await send(reason));
      submit.remove();
      input.disabled = true;
      cancel.textContent = 'Close';
      cancel.focus();
      done();
    } catch (error) {
      submit.disabled = false;
      show(result, failure(error));
    }
  });
  input.addEventListener('input', () => input.setCustomValidity(''));
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}
