// The page of the API: asks for the description with the key of this tab, and has Swagger UI show it.

// The console keeps the key under the same name.
const KEY = "stoker.key";
const gate = document.getElementById("gate");
const field = document.getElementById("key");
const refusal = document.getElementById("refusal");

async function show() {
  const key = sessionStorage.getItem(KEY) ?? "";
  const answer = await fetch("../openapi.json", { headers: key ? { authorization: `Bearer ${key}` } : {} });
  const content = await answer.json();
  gate.hidden = answer.status !== 401;
  if (!answer.ok) {
    if (key || answer.status !== 401) refusal.textContent = content.message;
    gate.hidden = false;
    return;
  }
  const ui = SwaggerUIBundle({
    spec: content,
    domNode: document.getElementById("docs"),
    tryItOutEnabled: true,
    // Nothing is asked of other servers.
    validatorUrl: null,
    onComplete: () => key && ui.preauthorizeApiKey("Key", key),
  });
}

gate.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, field.value.trim());
  show();
});
show();
