"use strict";
/* Pages that `stride view` serves: ticks are kept for the tab, and a page of a run that goes on loads again when it has more. */
(() => {
  const boxes = [...document.querySelectorAll("input[form=pick]")];
  const key = `picked ${location.pathname}`;
  const kept = new Set(JSON.parse(sessionStorage.getItem(key) ?? "[]"));
  for (const box of boxes) box.checked = kept.has(box.value);
  document.addEventListener("change", () => {
    sessionStorage.setItem(key, JSON.stringify(boxes.filter((box) => box.checked).map((box) => box.value)));
  });
  const { follow, state } = document.body.dataset;
  if (!follow) return;
  setInterval(async () => {
    const answer = await fetch(follow).catch(() => null); // the server may have ended
    if (answer?.ok && (await answer.text()) !== state) location.reload();
  }, 4000);
})();
