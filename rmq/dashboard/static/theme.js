// Before anything is drawn: the theme that was chosen last, else that of the system.
"use strict";
try {
  const chosen = localStorage.getItem("rmq-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is off: the system's theme it is */ }
