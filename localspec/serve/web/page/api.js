// Asks the server that the page came from.

const KEY = 'localspec.key'; // of this tab alone

/** The server wants a key, or another one. */
export class KeyNeeded extends Error {}

export function keepKey(key) {
  sessionStorage.setItem(KEY, key);
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { 'content-type': 'application/json' };
  if (key !== null) headers.authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Error('The server does not answer. Is it still running?');
  }
  if (response.status === 401) throw new KeyNeeded();
  if (!response.ok) throw new Error(await told(response));
  return response;
}

async function told(response) {
  try {
    const { error } = await response.json();
    return error.message ?? String(error);
  } catch {
    return `The server answers with status ${response.status}`;
  }
}

/** Return the names of the models, those that are loaded first. */
export async function models() {
  const [all, health] = await Promise.all([ask('/v1/models'), ask('/health')]);
  const loaded = (await health.json()).models;
  const names = (await all.json()).data.map((model) => model.id);
  return [...names.filter((name) => loaded.includes(name)), ...names.filter((name) => !loaded.includes(name))];
}

/**
 * Yield what an answer adds: `{ parts, reasoning, stats, reason }`, each where it is there.
 * Aborting `signal` stops the model.
 */
export async function* answer(body, signal) {
  const response = await ask('/v1/chat/completions', { method: 'POST', body: JSON.stringify(body), signal });
  for await (const chunk of events(response.body)) {
    if (chunk.error) throw new Error(chunk.error.message ?? String(chunk.error));
    const choice = chunk.choices?.[0];
    const told = chunk.localspec ?? {};
    const text = choice?.delta?.content;
    yield {
      parts: text ? (told.parts ?? [[text, null]]) : [],
      reasoning: choice?.delta?.reasoning_content ?? '',
      stats: 'tokens' in told ? told : null,
      reason: choice?.finish_reason ?? null,
    };
  }
}

/** Yield the objects of a stream of server-sent events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith('data: ') && line !== 'data: [DONE]') yield JSON.parse(line.slice(6));
    }
  }
}
