// The theme puts wide tables into boxes that scroll. Without a mouse, a box has to take the focus to be scrolled.
(() => {
  const open = (box) => {
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Table");
  };
  const openAll = () => document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach(open);
  new MutationObserver(openAll).observe(document.documentElement, { childList: true, subtree: true });
  openAll();
})();
