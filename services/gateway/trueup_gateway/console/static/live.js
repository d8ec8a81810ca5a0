// A page that follows: the stream says that something moved, the page reads itself again and takes over what changed.
const QUIET_MS = 400;

export function followPage(page) {
  const address = page.body.dataset.live;
  if (!address || !window.EventSource) return;
  const mark = page.querySelector("[data-live-mark]");
  let waiting = 0;
  let first = true;
  const source = new EventSource(address);
  const moved = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => readAgain(page), QUIET_MS);
  };
  source.addEventListener("open", () => show(mark, true));
  source.addEventListener("error", () => show(mark, false));
  source.addEventListener("moved", moved);
  source.addEventListener("state", () => {
    if (first) first = false; // the page is as new as the first state
    else moved();
  });
  source.addEventListener("end", () => {
    moved();
    source.close();
    if (mark) mark.hidden = true;
  });
  page.addEventListener("visibilitychange", () => {
    if (!page.hidden) moved();
  });
}

function show(mark, here) {
  if (!mark) return;
  mark.hidden = false;
  mark.classList.toggle("is-away", !here);
}

async function readAgain(page) {
  let text;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "error" });
    if (!answer.ok) return;
    text = await answer.text();
  } catch {
    return; // away for a moment: the stream comes back by itself
  }
  const fresh = new DOMParser().parseFromString(text, "text/html");
  let changed = false;
  for (const region of page.querySelectorAll("[data-region]")) {
    const other = fresh.querySelector(`[data-region="${CSS.escape(region.dataset.region)}"]`);
    if (!other || isInUse(region) || sameText(region, other)) continue;
    changed = true;
    takeOver(region, other);
  }
  if (changed) page.dispatchEvent(new CustomEvent("console:changed"));
}

// What a person is writing in is never taken away from under their hands.
function isInUse(region) {
  if (!("form" in region.dataset)) return false;
  return region.contains(document.activeElement) || region.querySelector("details[open]") !== null;
}

function sameText(region, other) {
  return meaning(region) === meaning(other);
}

// Ages and one-time keys differ in every reading; they are no news.
function meaning(region) {
  const copy = region.cloneNode(true);
  for (const time of copy.querySelectorAll("time[data-relative]")) time.textContent = "";
  for (const input of copy.querySelectorAll("input[type=hidden]")) input.remove();
  for (const part of copy.querySelectorAll("details[open]")) part.removeAttribute("open");
  for (const part of copy.querySelectorAll(".is-late, .is-soon, .fresh")) part.classList.remove("is-late", "is-soon", "fresh");
  return copy.innerHTML.replaceAll(' class=""', "");
}

function takeOver(region, other) {
  const open = [...region.querySelectorAll("details")].map((part) => part.open);
  const active = region.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  region.replaceChildren(...other.childNodes);
  const parts = [...region.querySelectorAll("details")];
  if (parts.length === open.length) parts.forEach((part, place) => { part.open = part.open || open[place]; });
  if (active) region.querySelector(`a[href="${CSS.escape(active)}"]`)?.focus();
  region.classList.remove("fresh");
  requestAnimationFrame(() => region.classList.add("fresh"));
}
