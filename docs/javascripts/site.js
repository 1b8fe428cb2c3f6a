// Wide tables and, on a phone, pictures stand in boxes that scroll. Without a mouse, a box has to take the focus to be
// scrolled.
(() => {
  const open = (boxes, name) =>
    boxes.forEach((box) => {
      box.tabIndex = 0;
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", name);
    });
  const narrow = window.matchMedia("(max-width: 640px)");
  const openAll = () => {
    open(document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])"), "Table");
    if (narrow.matches) {
      open(document.querySelectorAll('.md-typeset p:has(> img[src$=".svg"]):not([tabindex])'), "Picture");
    }
  };
  narrow.addEventListener("change", openAll);
  new MutationObserver(openAll).observe(document.documentElement, { childList: true, subtree: true });
  openAll();
})();
