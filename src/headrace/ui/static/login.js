// Signs in with a secret that was typed, or that is behind the # of the address, which browsers do not send.

const form = document.getElementById("login");
const field = document.getElementById("secret");
const problem = document.getElementById("problem");

async function signIn(secret) {
  problem.textContent = "";
  const response = await fetch("/login", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ secret }),
  }).catch(() => null);
  if (response?.ok) {
    const next = new URL(new URLSearchParams(location.search).get("next") ?? "/", location.origin);
    location.replace(next.origin === location.origin ? next : "/");
    return;
  }
  const answer = await response?.json().catch(() => null);
  problem.textContent = answer?.error ?? "The server does not answer.";
  field.select();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(field.value);
});

function readAddress() {
  if (location.hash.length < 2) return;
  const secret = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", location.pathname + location.search);
  signIn(secret);
}
addEventListener("hashchange", readAddress); // the link was opened where this page is already open
readAddress();
