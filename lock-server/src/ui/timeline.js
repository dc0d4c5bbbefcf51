// The picture of a lock: a lane for each lease, its end, the hand-over, and what was refused later.

import { readable, s } from './dom.js';
import { MEANINGS, named } from './story.js';

const LANES_MAX = 12;
const LANE = 40;
const TOP = 14;
const AXIS = 30;

// Position of a time. Between two events the axis is stretched, so that a second among hours is
// still seen; the order is kept.
function scale(times, left, right) {
  const points = [...new Set([...times, 0].map((ms) => Math.max(0, Math.round(ms))))].sort((a, b) => b - a);
  const weights = points.slice(1).map((ms, at) => (points[at] - ms) ** 0.4 + 1);
  const whole = weights.reduce((sum, weight) => sum + weight, 0) || 1;
  const places = new Map([[points[0], left]]);
  let x = left;
  points.slice(1).forEach((ms, at) => {
    x += (weights[at] / whole) * (right - left);
    places.set(ms, x);
  });
  return { at: (ms) => places.get(Math.max(0, Math.round(ms))) ?? left, points };
}

const short = (text, max) => (text.length > max ? `${text.slice(0, max - 1)}…` : text);

const titled = (text) => s('title', null, text);

function bar(one, y, at) {
  const from = at(one.granted);
  const to = one.holds ? at(0) : at(one.ended ?? 0);
  const width = Math.max(3, to - from);
  const state = one.holds ? 'holds' : one.reason ?? 'lost';
  const text = one.holds ? 'holds it' : one.reason ?? '';
  const said = one.holds ? `${named(one)} holds the lock`
    : `${named(one)} ended: ${MEANINGS[one.reason] ?? 'the reason is unknown'}`;
  const fits = width > text.length * 7 + 12;
  return s('g', null, titled(said),
    s('rect', { class: `lease ${state}`, x: from, y: y + 9, width, height: 20, rx: 4 }),
    fits ? s('text', { class: 'on-bar', x: from + 8, y: y + 23 }, text) : null,
    fits || one.refusals.length ? null : s('text', { class: 'beside', x: to + 6, y: y + 23 }, text));
}

function wait(one, y, at) {
  const to = one.granted ?? one.left ?? 0;
  return s('g', null, titled(`${named(one)} waited ${readable(one.queued - to)}`),
    s('line', { class: 'waits', x1: at(one.queued), x2: at(to), y1: y + 19, y2: y + 19 }),
    s('circle', { class: 'waits-from', cx: at(one.queued), cy: y + 19, r: 3.5 }));
}

function refusals(one, y, at) {
  const last = Math.min(...one.refusals.map((refusal) => refusal.ago));
  const from = one.ended ?? Math.max(...one.refusals.map((refusal) => refusal.ago));
  return s('g', null,
    s('line', { class: 'believes', x1: at(from), x2: at(last), y1: y + 19, y2: y + 19 }),
    one.refusals.map((refusal) => {
      const x = at(refusal.ago);
      return s('g', { class: 'refusal' },
        titled(`Refused ${readable(refusal.ago)} ago: ${refusal.text}, mark ${refusal.mark ?? '?'}`),
        s('circle', { cx: x, cy: y + 19, r: 8 }),
        s('path', { d: `M${x - 3.5} ${y + 15.5}l7 7m0-7l-7 7` }));
    }));
}

function lane(one, y, { at, names, narrow, right }) {
  const max = Math.floor((narrow ? right - 130 : names) / 7.6);
  return s('g', { class: 'lane' },
    s('text', { class: 'owner', x: 0, y: y + (narrow ? 2 : 17) }, titled(named(one)), short(one.owner ?? '?', max)),
    one.token == null ? null
      : s('text', { class: 'lane-token', x: narrow ? right : 0, y: y + (narrow ? 2 : 31), 'text-anchor': narrow ? 'end' : 'start' },
        narrow ? one.token : `token ${one.token}`),
    one.queued != null ? wait(one, y, at) : null,
    one.granted != null ? bar(one, y, at) : null,
    one.refusals.length ? refusals(one, y, at) : null);
}

// The lines from the end of a lease to the next grant.
function handOvers(shown, rows, at) {
  const granted = shown.filter((one) => one.granted != null && one.token != null);
  return granted.slice(1).map((one, index) => {
    const before = granted[index];
    if (before.ended == null || before.ended < one.granted - 5) return null;
    const x = at(one.granted);
    return s('line', { class: 'hand-over', x1: x, x2: x, y1: rows.get(before) + 29, y2: rows.get(one) + 9 });
  });
}

function ticks({ at, points }, left, right, y) {
  // From now back, as far as there is room for the text.
  let free = right - 34;
  const marks = [...points].reverse().filter((ms) => {
    const half = readable(ms).length * 3.4 + 8;
    const end = Math.max(at(ms) + half, left + 2 * half);
    if (ms <= 0 || end > free) return false;
    free = end - 2 * half - 8;
    return true;
  });
  return s('g', { class: 'axis' },
    s('line', { x1: left, x2: right, y1: y, y2: y }),
    marks.map((ms) => s('g', null,
      s('line', { x1: at(ms), x2: at(ms), y1: y, y2: y + 4 }),
      s('text', { x: at(ms), y: y + 18, 'text-anchor': at(ms) - left < 40 ? 'start' : 'middle' }, `−${readable(ms)}`))),
    s('text', { x: right, y: y + 18, 'text-anchor': 'end' }, 'now'));
}

// The picture for a width in pixels; null where nothing is remembered.
export function timeline(all, width) {
  const shown = all.slice(-LANES_MAX);
  if (!shown.length) return null;
  const narrow = width < 560;
  const names = narrow ? 0 : Math.min(190, width * 0.24);
  const step = narrow ? LANE + 14 : LANE;
  const left = narrow ? 4 : names + 10;
  const right = width - 10;
  const times = shown.flatMap((one) =>
    [one.queued, one.left, one.granted, one.ended, ...one.refusals.map((refusal) => refusal.ago)])
    .filter((ms) => ms != null);
  const axis = scale(times, left, right);
  const rows = new Map(shown.map((one, index) => [one, TOP + index * step + (narrow ? 14 : 0)]));
  const bottom = TOP + shown.length * step + (narrow ? 14 : 4);
  const refused = shown.reduce((sum, one) => sum + one.refusals.length, 0);
  const label = `Timeline of ${shown.length} leases${refused ? `, with ${refused} refused operations` : ''}; the tables below say the same`;
  return s('svg', { class: 'timeline', role: 'img', 'aria-label': label, viewBox: `0 0 ${width} ${bottom + AXIS}`, width, height: bottom + AXIS },
    shown.map((one) => s('line', { class: 'rule', x1: left, x2: right, y1: rows.get(one) + 19, y2: rows.get(one) + 19 })),
    s('line', { class: 'now', x1: right, x2: right, y1: TOP, y2: bottom }),
    handOvers(shown, rows, axis.at),
    shown.map((one) => lane(one, rows.get(one), { at: axis.at, names, narrow, right })),
    ticks(axis, left, right, bottom));
}
