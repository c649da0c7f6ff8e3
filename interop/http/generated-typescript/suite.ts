// What an app's server does, by a client that was generated: nothing here knows a path or a field's name on the wire.
import { createClient, createConfig } from './tidings/client/index.js';
import * as api from './tidings/sdk.gen.js';
import type { PopupSpec, Problem } from './tidings/types.gen.js';

let cases = 0;
let failures = 0;

function report(name: string, passed: boolean, why: unknown): boolean {
  cases += 1;
  failures += passed ? 0 : 1;
  console.log(`${passed ? 'ok' : 'not ok'} ${cases} - ${name}`);
  if (!passed) console.log(`# ${JSON.stringify(why)}`);
  return passed;
}

const baseUrl = process.env['TIDINGS_URL'] ?? '';
const client = createClient(createConfig({ baseUrl, auth: () => process.env['TIDINGS_API_KEY'] }));
console.log('TAP version 13');
console.log(`# client: @hey-api/openapi-ts ${process.env['GENERATOR']} (fetch)`);

const users = await api.upsertUsers({
  client,
  body: { users: [{ id: 'gen-ts-ada', name: 'Ada', attributes: { plan: 'gold' } }, { id: 'gen-ts-ben' }] },
});
report('users are made', users.data?.created === 2, users.error);
const card = await api.getUser({ client, path: { user: 'gen-ts-ada' } });
report('a card is read', card.data?.name === 'Ada' && card.data.attributes?.['plan'] === 'gold', card.error);

const group = await api.createConversation({
  client,
  body: { id: 'gen-ts-house', kind: 'group', owner: 'gen-ts-ada', members: ['gen-ts-ben'] },
});
report('a conversation is opened', group.response?.status === 201 && group.data?.member_count === 2, group.error);

const conversation = 'gen-ts-house';
const seqs: number[] = [];
for (let n = 0; n < 7; n += 1) {
  const sent = await api.send({
    client,
    body: { conversation, from: 'gen-ts-ada', client_msg_id: `m${n}`, body: { text: n } },
  });
  if (sent.data) seqs.push(sent.data.seq);
}
report('messages are sent', seqs.length === 7 && seqs.every((seq, at) => seq === seqs[0]! + at), seqs);
const again = await api.send({ client, body: { conversation, from: 'gen-ts-ada', client_msg_id: 'm6', body: { text: 6 } } });
report('a retry answers with the first result', again.data?.duplicate === true && again.data.seq === seqs[6], again);
const other = await api.send({ client, body: { conversation, from: 'gen-ts-ada', client_msg_id: 'm6', body: 1 } });
report('another message under its id is refused', other.error?.code === 'client_msg_id_reused', other);

for (const way of ['next', 'previous'] as const) {
  const first = way === 'next' ? { from_seq: seqs[0]! } : { to_seq: seqs[6]! };
  let page = (await api.listMessages({ client, path: { conversation }, query: { ...first, limit: 2 } })).data;
  let read: number[] = [];
  while (page) {
    const part = page.entries.map((entry) => entry.seq);
    read = way === 'next' ? [...read, ...part] : [...part, ...read];
    const cursor: string | null | undefined = page[way];
    page = cursor ? (await api.listMessages({ client, path: { conversation }, query: { cursor, limit: 2 } })).data : undefined;
  }
  const wanted = way === 'next' ? seqs : Array.from({ length: seqs[6]! }, (_, at) => at + 1);
  report(`history is read by ${way}, each entry once`, JSON.stringify(read) === JSON.stringify(wanted), read);
}
const list = await api.listConversations({ client, path: { user: 'gen-ts-ben' } });
report('a list has its unread counts', list.data?.conversations[0]?.unread === 7, list);

const popup: PopupSpec = {
  state: 'live',
  placements: ['gen-ts'],
  variants: [{ id: 'a', content: { title: 'Hello', buttons: [{ id: 'go', label: 'Go', action: { type: 'open', url: 'https://example.org' } }] } }],
};
const kept = await api.putPopup({ client, path: { popup: 'gen-ts' }, headers: { 'Tidings-Author': 'interop' }, body: popup });
report('a popup is made', kept.response?.status === 201 && kept.data?.updated_by === 'interop', kept.error);
const decided = await api.decide({ client, body: { user: 'gen-ts-ben', placement: 'gen-ts' } });
const decision = decided.data && 'decision' in decided.data ? decided.data : undefined;
if (report('a popup is decided', decision?.content.title === 'Hello', decided) && decision) {
  const events = [{ id: 'gen-ts-1', decision: decision.decision, type: 'click' as const }];
  const taken = await api.reportEvents({ client, body: { events } });
  report('what became of it is reported', taken.data?.accepted === 1, taken.error);
}
const nothing = await api.decide({ client, body: { user: 'gen-ts-ben', placement: 'gen-ts-nowhere' } });
report('where none is due there is none', nothing.response?.status === 204 && nothing.error === undefined, nothing);

const pushed = await api.sendPush({ client, body: { to: { users: ['gen-ts-ben'] }, body: { offer: 1 } } });
const push = pushed.data && 'push' in pushed.data ? pushed.data.push : undefined;
report('a push is accepted', pushed.response?.status === 202 && push !== undefined, pushed.error);
const status = await api.getPush({ client, path: { push: push ?? 0 } });
report('its state is read', status.data?.push === push, status.error);

const segment = await api.putSegment({ client, path: { segment: 'gen-ts-friends' }, body: 'gen-ts-ada\ngen-ts-ben\n' });
report('a list of users is uploaded as text', segment.data?.users === 2, segment.error);

const nobody = await api.getUser({ client, path: { user: 'gen-ts-nobody' } });
const problem: Problem | undefined = nobody.error;
report('a refusal is an error with its code', nobody.response?.status === 404 && problem?.code === 'not_found', nobody);
const stranger = createClient(createConfig({ baseUrl, auth: () => 'nobody' }));
const refused = await api.getUser({ client: stranger, path: { user: 'gen-ts-ada' } });
report('a wrong key is refused', refused.error?.code === 'unauthorized', refused);

console.log(`1..${cases}`);
process.exit(failures ? 1 : 0);
