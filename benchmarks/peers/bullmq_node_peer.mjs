// BullMQ for Node: addBulk; a worker with many jobs at a time, done jobs removed. Obeys the command line of adapter.py.
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.env.PEERS_NODE_MODULES, "index.js"));
const { Queue, Worker } = require("bullmq");
const [verb, url, what] = process.argv.slice(2);
const { hostname: host, port } = new URL(url);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const BATCH = 500;

async function enqueue(queue, number) {
  for (let first = 0; first < number; first += BATCH) {
    const jobs = [];
    for (let index = first; index < Math.min(first + BATCH, number); index += 1) {
      const text = `order:${String(index).padStart(14, "0")}`;
      jobs.push({ name: "job", data: { text }, opts: { removeOnComplete: true } });
    }
    await queue.addBulk(jobs);
  }
}

if (verb === "enqueue") {
  const queue = new Queue("peers", { connection });
  await enqueue(queue, 10);
  const cpuBefore = process.cpuUsage();
  const started = performance.now();
  await enqueue(queue, Number(what));
  const used = process.cpuUsage(cpuBefore);
  console.log(JSON.stringify({ took_s: (performance.now() - started) / 1000, cpu_s: (used.user + used.system) / 1e6 }));
  await queue.close();
} else {
  new Worker("peers", async () => {}, { connection, concurrency: Number(what) });
  process.on("SIGTERM", () => process.exit(0));
}
