// The console works without this file; it adds keys, times that go on, pages that follow, and buttons that act once.
import { keepTimes } from "./times.js";
import { followPage } from "./live.js";
import { listenToKeys } from "./keys.js";
import { actOnce } from "./once.js";
import { keepTyped } from "./kept.js";

keepTimes(document);
actOnce(document);
keepTyped(document);
listenToKeys(document);
followPage(document);

document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});
