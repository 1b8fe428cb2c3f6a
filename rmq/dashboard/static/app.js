// The pages work without this. It keeps their figures live, shows single values of the charts, and switches the theme.
"use strict";

const every = Number(document.body.dataset.refresh);
const liveButton = document.getElementById("live");
const themeButton = document.getElementById("theme");

// --- theme
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (document.documentElement.dataset.theme || (systemDark.matches ? "dark" : "light")) === "dark";
function nameTheme() {
  themeButton.textContent = dark() ? "Light" : "Dark";
  themeButton.setAttribute("aria-label", dark() ? "Switch to light colours" : "Switch to dark colours");
}
themeButton.hidden = false;
themeButton.addEventListener("click", () => {
  const next = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("rmq-theme", next); } catch { /* for this page only */ }
  nameTheme();
});
systemDark.addEventListener("change", nameTheme);
nameTheme();

// --- live figures: fetch the same page again, and replace the parts marked with data-live
let live = every > 0;
let timer = 0;
function schedule() {
  clearTimeout(timer);
  if (live && !document.hidden) timer = setTimeout(refresh, every);
}
async function refresh() {
  const trouble = document.getElementById("trouble");
  try {
    const answer = await fetch(location.href, { headers: { "x-rmq-live": "1" }, signal: AbortSignal.timeout(20000) });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      const held = part.contains(document.activeElement) || part.matches(":hover") && part.querySelector(".tip");
      if (other && part.querySelector("details[open]")) other.querySelector("details")?.setAttribute("open", "");
      if (other && !held) part.replaceWith(document.adoptNode(other));
    }
    localTimes();
    trouble.hidden = true;
  } catch {
    trouble.hidden = false;
  }
  schedule();
}
if (every > 0) {
  liveButton.hidden = false;
  liveButton.addEventListener("click", () => {
    live = !live;
    liveButton.setAttribute("aria-pressed", String(live));
    schedule();
  });
  document.addEventListener("visibilitychange", () => { if (live && !document.hidden) refresh(); });
  schedule();
}

// --- the key / moves the focus to the search field
const jump = document.getElementById("jump");
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && document.activeElement === jump) return jump.blur();
  const typing = event.target instanceof Element && event.target.closest("input, select, textarea");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  jump.focus();
  jump.select();
});

// --- all messages of a list at once
const all = document.getElementById("all");
if (all) {
  all.hidden = false;
  all.addEventListener("click", () => {
    const boxes = [...document.querySelectorAll("#list input[type=checkbox]")];
    const on = boxes.some((box) => !box.checked);
    for (const box of boxes) box.checked = on;
  });
}

// --- times in the reader's zone
function localTimes() {
  for (const time of document.querySelectorAll("time[data-ms]")) {
    time.textContent = new Date(Number(time.dataset.ms)).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  }
}
localTimes();

// --- single values of a chart, by pointer
function forget() {
  for (const each of document.querySelectorAll(".tip, .mark")) each.remove();
}
document.addEventListener("pointermove", (event) => {
  const plot = event.target instanceof Element ? event.target.closest(".plot") : null;
  forget();
  if (!plot) return;
  const lines = JSON.parse(plot.closest("[data-chart]").dataset.chart);
  const box = plot.querySelector("svg").getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width * 600;
  const nearest = (points) => points.reduce((best, each) => Math.abs(each[1] - x) < Math.abs(best[1] - x) ? each : best);
  const found = lines.filter((line) => line.points.length).map((line) => [line.name, nearest(line.points)]);
  if (!found.length) return;
  const tip = document.createElement("div");
  tip.className = "tip";
  const clock = new Date(found[0][1][0]).toLocaleTimeString([], { hour12: false });
  tip.textContent = `${clock}  ` + found.map(([name, point]) => found.length > 1 ? `${name} ${point[3]}` : point[3]).join("  ");
  const mark = document.createElement("div");
  mark.className = "mark";
  const at = found[0][1][1] / 600;
  mark.style.left = `${at * 100}%`;
  tip.style[at > 0.5 ? "right" : "left"] = `${(at > 0.5 ? 1 - at : at) * 100}%`;
  plot.append(mark, tip);
});
