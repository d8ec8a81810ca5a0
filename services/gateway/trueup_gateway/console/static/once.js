// A form is sent once. Its key would make a second sending harmless; this only spares the wait.
export function actOnce(page) {
  page.addEventListener("submit", (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || !("once" in form.dataset)) return;
    if (form.dataset.sent) {
      event.preventDefault();
      return;
    }
    form.dataset.sent = "yes";
    for (const button of form.querySelectorAll("button")) button.setAttribute("aria-disabled", "true");
  });
  addEventListener("pageshow", (event) => {
    if (event.persisted) page.dispatchEvent(new CustomEvent("console:again")); // the world may have moved since
    for (const form of page.querySelectorAll("form[data-sent]")) {
      delete form.dataset.sent;
      for (const button of form.querySelectorAll("button")) button.removeAttribute("aria-disabled");
    }
  });
}
