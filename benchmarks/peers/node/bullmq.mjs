// BullMQ for Node: addBulk and add; a worker with many jobs at a time, done jobs removed. Obeys adapter.py's command line.
import { createRequire } from "node:module";

const require = createRequire(import.meta.url); // finds packages by NODE_PATH
const { Queue, Worker } = require("bullmq");
const [verb, url, what, many] = process.argv.slice(2);
const { hostname: host, port } = new URL(url);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const BATCH = 500;
const PROMISES = 100;
const due = Date.now() + Number(process.env.PEERS_DELAY_MS ?? 0);
const options = () => ({ removeOnComplete: true, delay: Math.max(due - Date.now(), 0) });
const data = (index) => ({ text: `order:${String(index).padStart(14, "0")}` });

async function bulk(queue, number) {
  for (let first = 0; first < number; first += BATCH) {
    const jobs = [];
    for (let index = first; index < Math.min(first + BATCH, number); index += 1) {
      jobs.push({ name: "job", data: data(index), opts: options() });
    }
    await queue.addBulk(jobs);
  }
}

async function tasks(queue, number) {
  const share = async (first) => {
    for (let index = first; index < number; index += PROMISES) await queue.add("job", data(index), options());
  };
  await Promise.all(Array.from({ length: PROMISES }, (_, first) => share(first)));
}

async function late(queue, perSecond, number) {
  const found = [];
  const handled = new Promise((resolve) => {
    const handle = async (job) => found.push(Date.now() - job.data.due) === number && resolve();
    new Worker("peers", handle, { connection, concurrency: 50 });
  });
  const started = performance.now();
  for (let index = 0; index < number; index += 1) {
    const wait = started + (index * 1000) / perSecond - performance.now();
    if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
    queue.add("job", { due: Date.now() + 1000 }, { removeOnComplete: true, delay: 1000 });
  }
  await handled;
  console.log(JSON.stringify(found));
}

if (verb === "work") {
  new Worker("peers", async () => {}, { connection, concurrency: Number(what) });
  process.on("SIGTERM", () => process.exit(0));
} else {
  const queue = new Queue("peers", { connection });
  if (verb === "late") {
    await late(queue, Number(what), Number(many));
    process.exit(0);
  }
  const enqueue = { bulk, tasks }[what];
  await enqueue(queue, 2000); // compiled
  const cpuBefore = process.cpuUsage();
  const started = performance.now();
  await enqueue(queue, Number(many));
  const used = process.cpuUsage(cpuBefore);
  console.log(JSON.stringify({ took_s: (performance.now() - started) / 1000, cpu_s: (used.user + used.system) / 1e6 }));
  await queue.close();
}
