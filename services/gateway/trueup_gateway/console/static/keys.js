// Keys: j and k through the rows, Enter opens (the link does that by itself), u goes up, g and a letter goes to a place.
const PLACES = { e: "exceptions", c: "cases", a: "approvals", r: "repairs", i: "incidents", b: "batches", s: "slo", f: "freezes" };

export function listenToKeys(page) {
  const help = page.querySelector("[data-keys]");
  const showHelp = () => help?.showModal();
  page.querySelector("[data-help]")?.addEventListener("click", showHelp);
  let goes = false;
  page.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || writes(event.target) || help?.open) return;
    const key = event.key;
    if (goes) {
      goes = false;
      const link = PLACES[key] && page.querySelector(`nav a[href$="/${PLACES[key]}"]`);
      if (link) {
        event.preventDefault();
        link.click();
        return;
      }
    }
    if (key === "g") goes = true;
    else if (key === "j" || key === "k") move(page, key === "j" ? 1 : -1, event);
    else if (key === "u") page.querySelector("[data-up]")?.click();
    else if (key === "a") act(page, event);
    else if (key === "?") showHelp();
  });
}

function writes(target) {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName));
}

function move(page, step, event) {
  const links = [...page.querySelectorAll("[data-row] .row-what > a, [data-fold] > [data-stop]")].filter(isOpen);
  if (!links.length) return;
  event.preventDefault();
  const place = links.indexOf(page.activeElement);
  const next = place < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(Math.max(place + step, 0), links.length - 1);
  links[next].focus();
  links[next].scrollIntoView({ block: "nearest" });
}

// What lies in a fold that is closed is passed over; Enter on the fold opens it.
function isOpen(stop) {
  const around = stop.matches("[data-stop]") ? stop.parentElement.parentElement : stop;
  return around.closest("details:not([open])") === null;
}

function act(page, event) {
  const offer = page.querySelector("[data-first-offer]");
  if (!offer) return;
  event.preventDefault();
  offer.open = true;
  offer.querySelector("summary").focus();
}
