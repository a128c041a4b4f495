// BullMQ as a peer: `node bullmq.mjs send plain|deduplicated`, `node bullmq.mjs work CONCURRENCY`,
// `node bullmq.mjs trickle A_SECOND MESSAGES`, `node bullmq.mjs pickup`.
// watching.py or services.py starts it and says by PEER_* what it works on.
import { readFileSync } from 'node:fs';
import { Queue, Worker } from 'bullmq';

const JOBS_A_CALL = 1000;
const DELAY_MS = 1; // due when a worker comes
const connection = { host: '127.0.0.1', port: Number(process.env.PEER_PORT), maxRetriesPerRequest: null };
const queue = new Queue('Bench', { connection });

const OPTIONS = {
  plain: () => ({ removeOnComplete: true }),
  deduplicated: (content) => ({ removeOnComplete: true, delay: DELAY_MS, deduplication: { id: content } }),
};

function ownContents() {
  const [part, parts] = [Number(process.env.PEER_PART), Number(process.env.PEER_PARTS)];
  const all = readFileSync(process.env.PEER_CONTENTS, 'utf8').split('\n').slice(0, -1);
  return all.filter((_, at) => at % parts === part);
}

async function send(mode) {
  const jobs = ownContents().map((data) => ({ name: 'm', data, opts: OPTIONS[mode](data) }));
  for (let at = 0; at < jobs.length; at += JOBS_A_CALL) {
    await queue.addBulk(jobs.slice(at, at + JOBS_A_CALL));
  }
  await queue.close();
}

async function work(concurrency) {
  let done = 0;
  const worker = new Worker('Bench', async () => { done += 1; }, { connection, concurrency });
  worker.on('error', (error) => console.error(error));
  process.once('SIGTERM', async () => {
    await worker.close();
    await (await queue.client).incrby('peer_done', done);
    await queue.close();
  });
}

const now = () => performance.timeOrigin + performance.now();

async function trickle(aSecond, messages) {
  const begun = now();
  for (let sent = 0; sent < messages; sent += 1) {
    await new Promise((done) => setTimeout(done, Math.max(0, begun + (1000 * sent) / aSecond - now())));
    await queue.add('m', String(now()), { removeOnComplete: true });
  }
  await queue.close();
}

async function pickup() {
  const late = [];
  const worker = new Worker('Bench', async (job) => { late.push(now() - Number(job.data)); }, { connection });
  process.once('SIGTERM', async () => {
    await worker.close();
    await (await queue.client).rpush('peer_late', ...late);
    await queue.close();
  });
}

const [side, how, more] = process.argv.slice(2);
const sides = {
  send: () => send(how),
  work: () => work(Number(how)),
  trickle: () => trickle(Number(how), Number(more)),
  pickup,
};
await sides[side]();
