// A text to the clipboard, and that it is there.

async function copyText(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  $("copied").textContent = done ? "copied" : "the browser did not allow it";
  setTimeout(() => { $("copied").textContent = ""; }, 2500);
}
