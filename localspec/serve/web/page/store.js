// Conversations and settings, which the browser keeps. Each conversation has a key of its own.

const LIST = 'localspec.conversations';
const SETTINGS = 'localspec.settings';
const TITLE = 60;

const key = (id) => `localspec.conversation.${id}`;

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch { // damaged, or no storage
    return otherwise;
  }
}

/** Write a value; return whether the browser took it. */
function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch { // full
    return false;
  }
}

/** Return `{ id, title, changed }` of each conversation, the latest first. */
export function list() {
  const found = read(LIST, []);
  return Array.isArray(found) ? found.sort((one, other) => other.changed - one.changed) : [];
}

export function fresh() {
  return { id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: '', messages: [] };
}

/** Return a conversation, null if there is none. */
export function open(id) {
  const found = read(key(id), null);
  return found && Array.isArray(found.messages) ? found : null;
}

/** Keep a conversation, which is called after its first message; return whether there was room. */
export function keep(conversation) {
  if (!conversation.title) {
    const first = conversation.messages.find((message) => message.role === 'user')?.text.trim().split('\n')[0] ?? '';
    conversation.title = first.length > TITLE ? `${first.slice(0, TITLE)}…` : first;
  }
  const { id, title } = conversation;
  const others = list().filter((each) => each.id !== id);
  return write(key(id), conversation) && write(LIST, [{ id, title, changed: Date.now() }, ...others]);
}

export function rename(id, title) {
  const conversation = open(id);
  if (conversation) write(key(id), { ...conversation, title });
  write(LIST, list().map((each) => (each.id === id ? { ...each, title } : each)));
}

export function remove(id) {
  localStorage.removeItem(key(id));
  write(LIST, list().filter((each) => each.id !== id));
}

export function settings() {
  return { model: '', draft: 'auto', guesses: false, theme: '', system: '', temperature: '', ...read(SETTINGS, {}) };
}

export function keepSettings(changed) {
  write(SETTINGS, { ...settings(), ...changed });
}
