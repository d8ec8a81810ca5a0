// What was typed in vain is put back where it was typed: kept in this tab alone, for half an hour, once.
const NAME = "trueup.kept";
const KEPT_MS = 30 * 60 * 1000;

export function keepTyped(page) {
  page.addEventListener("submit", (event) => {
    if (event.target.getAttribute?.("action")?.endsWith("/logout")) sessionStorage.removeItem(NAME);
  });
  const lost = page.querySelector("[data-kept]");
  if (lost) {
    const fields = [...lost.querySelectorAll("[data-name]")].map((part) => [part.dataset.name, part.textContent]);
    sessionStorage.setItem(NAME, JSON.stringify({ form: lost.dataset.kept, mark: lost.dataset.mark, fields, at: Date.now() }));
    for (const hint of lost.querySelectorAll("[data-returns]")) hint.hidden = false;
    return;
  }
  const kept = read();
  const form = kept && [...page.forms].find((one) => one.getAttribute("action") === kept.form && markOf(one) === kept.mark);
  if (!form) return;
  sessionStorage.removeItem(NAME);
  for (const [name, text] of kept.fields) {
    const field = form.elements.namedItem(name);
    if (field instanceof HTMLElement && field.type !== "hidden") field.value = text;
  }
  const around = form.closest("details");
  if (around) around.open = true;
  const said = page.querySelector("[data-said]");
  if (said) said.textContent = page.body.dataset.returned ?? "";
  form.querySelector("input:not([type=hidden]), select, textarea")?.focus();
}

function read() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(NAME) ?? "null");
    return kept && Date.now() - kept.at < KEPT_MS ? kept : null;
  } catch {
    return null;
  }
}

function markOf(form) {
  const value = (name) => form.querySelector(`input[name=${name}]`)?.value ?? "";
  const action = form.querySelector("select[name=action]") ? null : value("action");
  return `${action ?? ""} ${value("target_id")}`.trim();
}
