// Relative times go on while the page stands; the server's clock counts, not this machine's.
const SIZES = [[86400, 3], [3600, 2], [60, 1], [1, 0]];
const SOON_SECONDS = 900;
const HOURS = 2; // the unit from which on a second one is told
const FEW = 10;

export function relativeText(seconds, words) {
  const whole = Math.floor(Math.abs(seconds));
  const [size, unit] = SIZES.find(([size]) => whole >= size) ?? [1, 0];
  const count = Math.floor(whole / size);
  let span = words.units[unit].replace("#", String(count));
  const [smaller] = SIZES.find(([, other]) => other === unit - 1) ?? [0];
  const rest = whole % size;
  if (unit >= HOURS && count < FEW && rest >= smaller) {
    span += ` ${words.units[unit - 1].replace("#", String(Math.floor(rest / smaller)))}`;
  }
  return (seconds > 0 ? words.in : words.ago).replace("#", span);
}

export function keepTimes(page) {
  const { now, units, in: ahead, ago } = page.body.dataset;
  if (!now) return;
  const offset = Date.parse(now) - Date.now();
  const words = { units: units.split(","), in: ahead, ago };
  const tell = () => {
    for (const time of page.querySelectorAll("time[data-relative]")) {
      const seconds = (Date.parse(time.dateTime) - (Date.now() + offset)) / 1000;
      const text = relativeText(seconds, words);
      if (time.textContent !== text) time.textContent = text;
      const due = time.closest("[data-due]");
      if (due) {
        due.classList.toggle("is-late", seconds < 0);
        due.classList.toggle("is-soon", seconds >= 0 && seconds < SOON_SECONDS);
      }
    }
  };
  tell();
  setInterval(tell, 5000);
  page.addEventListener("console:changed", tell);
}
