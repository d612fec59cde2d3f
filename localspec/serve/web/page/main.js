// The chat: takes messages, asks the server, and keeps the conversation.

import { answer, hasKey, keepKey, KeyNeeded, models } from './api.js';
import { withPart } from './answer.js';
import { make } from './dom.js';
import { Answer, grow, question, sends } from './messages.js';
import * as sidebar from './sidebar.js';
import * as store from './store.js';

const IDEAS = [
  'Explain what a hash table is in two sentences.',
  'Write a Python function that reverses the words of a sentence.',
  'Compare a list and a tuple in a small table.',
];
const NEAR = 90; // pixels from the end within which the page follows an answer

const $ = (id) => document.getElementById(id);
const scroll = $('scroll');
const prompt = $('prompt');
const dark = matchMedia('(prefers-color-scheme: dark)');

let conversation = store.fresh();
let writing = null; // the AbortController of the answer that is being written

// Settings

function applySettings() {
  const settings = store.settings();
  document.documentElement.dataset.theme = settings.theme;
  const isDark = settings.theme ? settings.theme === 'dark' : dark.matches;
  $('theme').setAttribute('aria-pressed', String(isDark));
  $('theme').querySelector('use').setAttribute('href', isDark ? '#icon-sun' : '#icon-moon');
  $('guesses').setAttribute('aria-pressed', String(settings.guesses));
  document.body.classList.toggle('guesses', settings.guesses);
  $('draft').value = settings.draft;
  $('open-settings').classList.toggle('set', Boolean(settings.system || settings.temperature !== ''));
}

function change(changed) {
  store.keepSettings(changed);
  applySettings();
}

$('theme').addEventListener('click', () => {
  change({ theme: $('theme').getAttribute('aria-pressed') === 'true' ? 'light' : 'dark' });
});
$('guesses').addEventListener('click', () => following(() => change({ guesses: !store.settings().guesses })));
$('draft').addEventListener('change', () => change({ draft: $('draft').value }));
$('model').addEventListener('change', () => change({ model: $('model').value }));
dark.addEventListener('change', applySettings);

$('open-settings').addEventListener('click', () => {
  const { system, temperature } = store.settings();
  $('system').value = system;
  $('temperature').value = temperature;
  $('settings').showModal();
});
$('settings').addEventListener('input', () => { // a dialog's `close` comes later, perhaps after the page is left
  const field = $('temperature');
  change({ system: $('system').value.trim(), temperature: field.validity.valid ? field.value : '' });
});

// The server's models and its key

async function askKey() {
  $('key-wrong').textContent = hasKey() ? 'The server refuses this key.' : '';
  $('key-value').value = '';
  $('key').showModal();
  await new Promise((resolve) => { $('key').addEventListener('close', resolve, { once: true }); });
  keepKey($('key-value').value);
}

/** Return what `action` returns, asking for the key as long as the server wants one. */
async function withKey(action) {
  for (;;) {
    try {
      return await action();
    } catch (error) {
      if (!(error instanceof KeyNeeded)) throw error;
      await askKey();
    }
  }
}

async function loadModels() {
  try {
    const names = await withKey(models);
    const last = store.settings().model;
    $('model').replaceChildren(...names.map((name) => make('option', { value: name }, name)));
    $('model').value = names.includes(last) ? last : (names[0] ?? '');
    if (!names.length) notice('The library has no model. In a terminal: localspec pull smollm2-135m');
  } catch (error) {
    notice(error.message);
  }
}

function notice(text) {
  $('welcome').querySelector('p').textContent = text;
}

// The conversation

function show() {
  const elements = conversation.messages.map((message, number) => element(message, number));
  $('messages').replaceChildren(...elements);
  $('welcome').hidden = conversation.messages.length > 0;
  document.title = conversation.title ? `${conversation.title} – localspec` : 'localspec';
  list();
  scroll.scrollTop = scroll.scrollHeight;
}

function element(message, number) {
  if (message.role === 'user') {
    return question(message, (text) => {
      stop();
      conversation.messages.length = number;
      say(text);
    });
  }
  return new Answer(message, () => again(number)).element;
}

function list() {
  sidebar.show(conversation.id, open, (id) => (id === conversation.id ? begin() : list()));
}

function open(id) {
  stop();
  conversation = store.open(id) ?? store.fresh();
  history.replaceState(null, '', `#${conversation.id}`);
  show();
}

function begin() {
  stop();
  conversation = store.fresh();
  history.replaceState(null, '', '/');
  show();
  sidebar.close();
  prompt.focus();
}

function keep() {
  if (!conversation.messages.length) return;
  if (!store.keep(conversation)) tell('The browser has no room for this conversation: delete others');
  history.replaceState(null, '', `#${conversation.id}`);
}

function tell(text) {
  $('status').textContent = text;
}

function say(text) {
  conversation.messages.push({ role: 'user', text });
  keep();
  show();
  respond();
}

function again(number) {
  stop();
  conversation.messages.length = number;
  show();
  respond();
}

/** Return the body of the request for the next answer. */
function request() {
  const { draft, system, temperature } = store.settings();
  const said = conversation.messages
    .filter((message) => message.text)
    .map((message) => ({ role: message.role, content: message.text }));
  const body = {
    model: $('model').value,
    messages: system ? [{ role: 'system', content: system }, ...said] : said,
    stream: true,
    localspec: { draft, stats: true },
  };
  return temperature === '' ? body : { ...body, temperature: Number(temperature) };
}

async function respond() {
  const own = conversation;
  const body = request();
  const message = { role: 'assistant', text: '', parts: [], reasoning: '', stats: null };
  own.messages.push(message);
  const number = own.messages.length - 1;
  const view = new Answer(message, () => again(number));
  const controller = new AbortController();
  setWriting(controller);
  let drawing = 0;
  const draw = () => {
    drawing = 0;
    following(() => view.show(writing === controller));
  };
  following(() => $('messages').append(view.element), true);
  view.show(true);
  try {
    await withKey(async () => {
      for await (const added of answer(body, controller.signal)) {
        take(message, added);
        drawing ||= requestAnimationFrame(draw);
      }
    });
  } catch (error) {
    if (error.name === 'AbortError') message.stopped = true;
    else message.fault = error.message;
  }
  cancelAnimationFrame(drawing);
  if (writing === controller) setWriting(null);
  following(() => view.show(false));
  tell(message.fault ?? (message.stopped ? 'Stopped' : 'The answer is complete'));
  if (own === conversation && own.messages.includes(message)) keep();
  else if (own.messages.includes(message)) store.keep(own);
  list();
}

function take(message, { parts, reasoning, stats, reason }) {
  for (const part of parts) {
    message.text += part[0];
    withPart(message.parts, [...part]);
  }
  message.reasoning += reasoning;
  message.stats = stats ?? message.stats;
  message.reason = reason ?? message.reason;
}

/** Change the page, and stay at its end if that is where the reader is. */
function following(action, always = false) {
  const near = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR;
  action();
  if (near || always) scroll.scrollTop = scroll.scrollHeight;
}

function setWriting(controller) {
  writing = controller;
  $('send').setAttribute('aria-label', writing ? 'Stop' : 'Send');
  $('send').querySelector('use').setAttribute('href', writing ? '#icon-stop' : '#icon-send');
  enable();
}

function stop() {
  writing?.abort();
  setWriting(null);
}

function enable() {
  $('send').disabled = !writing && !prompt.value.trim();
}

function submit() {
  const text = prompt.value.trim();
  if (!text || writing) return;
  prompt.value = '';
  grow(prompt);
  enable();
  say(text);
}

$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  if (writing) stop();
  else submit();
});
prompt.addEventListener('keydown', (event) => {
  if (sends(event)) {
    event.preventDefault();
    submit();
  }
});
prompt.addEventListener('input', () => {
  grow(prompt);
  enable();
});
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || document.querySelector('dialog[open]')) return;
  if (sidebar.isOpen()) sidebar.close();
  else if (writing) stop();
});
$('new').addEventListener('click', begin);
addEventListener('pagehide', () => { if (writing) keep(); });
addEventListener('storage', list); // another tab

$('ideas').append(...IDEAS.map((idea) => make('button', { type: 'button', onclick: () => { if (!writing) say(idea); } }, idea)));
applySettings();
conversation = store.open(location.hash.slice(1)) ?? conversation;
show();
enable();
prompt.focus();
loadModels();
