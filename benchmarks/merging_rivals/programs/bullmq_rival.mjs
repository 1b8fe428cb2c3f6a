// BullMQ for Node; obeys the command line of rival.py. Variants: its debounce mode; its continuous debounce; no merging.
import fs from "node:fs";
import path from "node:path";
import readline from "node:readline";
import { randomUUID } from "node:crypto";
import { createRequire } from "node:module";

const require = createRequire(import.meta.url); // finds packages by NODE_PATH
const { Queue, Worker } = require("bullmq");
const asked = JSON.parse(process.env.RIVAL);
const { hostname: host, port } = new URL(asked.url);
const connection = { host, port: Number(port), maxRetriesPerRequest: null };

const RETRIES = { attempts: 6, backoff: { type: "fixed", delay: asked.retry_ms }, removeOnComplete: true };
const MERGING = {
  debounce: (id) => ({
    delay: asked.quiet_ms,
    deduplication: { id, ttl: asked.quiet_ms, extend: true, replace: true },
  }),
  continuous: (id) => ({
    delay: asked.quiet_ms,
    deduplication: { id, keepLastIfActive: true, replace: true },
  }),
  none: () => ({}),
};

function write(what, run, key, more = {}) {
  const line = { what, run, key, at: Date.now(), ...more };
  fs.appendFileSync(asked.ledger, `${JSON.stringify(line)}\n`);
}

function firstOf(key) {
  try {
    fs.closeSync(fs.openSync(path.join(asked.failed, key), "wx"));
    return true;
  } catch {
    return false;
  }
}

async function handle(job) {
  const { key, number, value } = job.data;
  const run = randomUUID();
  write("start", run, key, { items: [[number, value]] });
  await new Promise((resolve) => setTimeout(resolve, asked.hold_ms));
  if (asked.fail_once && firstOf(key)) {
    write("failed", run, key);
    throw new Error("failed once");
  }
  write("done", run, key);
}

if (process.argv[2] === "work") {
  new Worker("rival", handle, { connection, concurrency: asked.concurrency });
} else {
  const queue = new Queue("rival", { connection });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { key, number, value } = JSON.parse(line);
    let error = null;
    try {
      await queue.add("update", { key, number, value }, { ...RETRIES, ...MERGING[asked.variant](key) });
    } catch (raised) {
      error = raised.name;
    }
    console.log(JSON.stringify({ key, number, error }));
  }
  await queue.close();
}
