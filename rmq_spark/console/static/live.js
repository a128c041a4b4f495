// Shows times in the viewer's zone, ticks all boxes at once, and fetches the page again to replace
// what has changed: the elements with data-live, by their ids. Nothing is fetched while the page is
// hidden, or while the user has switched "Live" off.

const every = Number(document.body.dataset.every || 0);
const button = document.getElementById("live");
const gone = document.getElementById("gone");
let timer = 0;

const two = (number) => String(number).padStart(2, "0");

function localTime(date) {
  const minutes = -date.getTimezoneOffset();
  const offset = `${minutes < 0 ? "-" : "+"}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())} ${offset}`;
}

function showTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const date = new Date(element.dateTime);
    if (!Number.isNaN(date.getTime())) {
      element.textContent = localTime(date);
      element.title = element.dateTime;
    }
  }
}

function offerAllBoxes(root) {
  for (const box of root.querySelectorAll("input[data-all]")) {
    box.hidden = false;
    box.addEventListener("change", () => {
      for (const one of box.form.querySelectorAll(`input[name="${box.dataset.all}"]`)) {
        one.checked = box.checked;
      }
    });
  }
}

// What has the focus in an element that is about to be replaced: a link by its target, a button by
// the form around it.
function focusIn(element) {
  const focused = document.activeElement;
  if (!element.contains(focused)) return null;
  if (focused.matches("a[href]")) return `a[href="${CSS.escape(focused.getAttribute("href"))}"]`;
  const form = focused.closest("form");
  return form && `form[action="${CSS.escape(form.getAttribute("action"))}"] button`;
}

function replaceLive(fresh) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(old.id);
    if (next === null) {
      location.reload();
      return;
    }
    showTimes(next);
    if (old.innerHTML === next.innerHTML) continue;
    const focus = focusIn(old);
    old.replaceChildren(...next.childNodes);
    if (focus) old.querySelector(focus)?.focus();
  }
}

function tell(text) {
  gone.textContent = text;
  gone.hidden = text === "";
  document.body.classList.toggle("stale", text !== "");
}

async function refresh() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.redirected) {
      location.reload();
      return;
    }
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const failed = fresh.getElementById("failed");
    if (!answer.ok) tell(failed ? failed.textContent : `The console answers ${answer.status}.`);
    else if (document.getElementById("failed")) location.reload();
    else {
      tell("");
      replaceLive(fresh);
    }
  } catch {
    tell("The console does not answer. This page tries again by itself.");
  }
  next();
}

function isOn() {
  return sessionStorage.getItem("live") !== "off";
}

function next() {
  clearTimeout(timer);
  if (every && isOn() && !document.hidden) timer = setTimeout(refresh, every);
}

showTimes(document);
offerAllBoxes(document);
if (every && button) {
  button.hidden = false;
  button.setAttribute("aria-pressed", isOn());
  button.addEventListener("click", () => {
    sessionStorage.setItem("live", isOn() ? "off" : "on");
    button.setAttribute("aria-pressed", isOn());
    next();
  });
}
document.addEventListener("visibilitychange", next);
next();
