// A page that follows: the stream says that something moved, the page reads itself again and takes over what changed.
// Where no stream is to be had, it looks again by itself, more rarely, and asks for the stream now and then.
const QUIET_MS = 400;
const LOOK_MS = 15000;
const STREAM_AFTER_LOOKS = 4;
const GONE = 2;

export function followPage(page) {
  page.addEventListener("console:again", () => readAgain(page));
  const address = page.body.dataset.live;
  if (!address || !window.EventSource) return;
  const mark = page.querySelector("[data-live-mark]");
  let waiting = 0;
  let looks = 0;
  let looking = 0;
  const moved = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => readAgain(page), QUIET_MS);
  };
  const look = () => {
    if (page.hidden) return;
    looks += 1;
    readAgain(page);
    if (looks % STREAM_AFTER_LOOKS === 0) {
      clearInterval(looking);
      looking = 0;
      follow();
    }
  };
  const follow = () => {
    let first = true;
    const source = new EventSource(address);
    source.addEventListener("open", () => tell(mark, "live"));
    source.addEventListener("error", () => {
      if (source.readyState !== GONE) return tell(mark, "away"); // it comes back by itself
      tell(mark, "looks");
      looking ||= setInterval(look, LOOK_MS);
    });
    source.addEventListener("moved", moved);
    source.addEventListener("state", () => {
      if (first) first = false; // the page is as new as the first state
      else moved();
    });
    source.addEventListener("end", () => {
      moved();
      setTimeout(() => readAgain(page), LOOK_MS); // what hangs on a case ends a moment later
      source.close();
      if (mark) mark.hidden = true;
    });
  };
  follow();
  page.addEventListener("visibilitychange", () => {
    if (!page.hidden) moved();
  });
}

function tell(mark, how) {
  if (!mark) return;
  mark.hidden = false;
  mark.dataset.how = how;
  for (const text of mark.querySelectorAll("[data-when]")) text.hidden = text.dataset.when !== how;
}

async function readAgain(page) {
  let text;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
    if (answer.type === "opaqueredirect") return over(page); // only a login page redirects
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

// The page stays as it was read, and says so: nothing that somebody is typing is lost.
function over(page) {
  for (const note of page.querySelectorAll("[data-over]")) note.hidden = false;
}

// What a person is writing in is never taken away from under their hands.
function isInUse(region) {
  if (!("form" in region.dataset)) return false;
  return region.contains(document.activeElement) || region.querySelector("details[open] form") !== null;
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
  const open = [...region.querySelectorAll("details:not([data-fold])")].map((part) => part.open);
  const unfolded = new Set([...region.querySelectorAll("details[data-fold][open]")].map((part) => part.dataset.fold));
  const active = region.contains(document.activeElement) ? placeOf(document.activeElement) : null;
  region.replaceChildren(...other.childNodes);
  const folds = [...region.querySelectorAll("details[data-fold]")];
  for (const fold of folds) fold.open = unfolded.has(fold.dataset.fold);
  const parts = [...region.querySelectorAll("details:not([data-fold])")];
  if (parts.length === open.length) parts.forEach((part, place) => { part.open = part.open || open[place]; });
  if (active) region.querySelector(active)?.focus();
  region.classList.remove("fresh");
  requestAnimationFrame(() => region.classList.add("fresh"));
}

// Where the focus is, so that it can be put back into what was read anew.
function placeOf(held) {
  if (held.getAttribute("href")) return `a[href="${CSS.escape(held.getAttribute("href"))}"]`;
  if (held.matches("[data-fold] > summary")) return `[data-fold="${CSS.escape(held.parentElement.dataset.fold)}"] > summary`;
  return null;
}
