// Sets the theme before the page is drawn, and lets the reader change it.
(() => {
  const root = document.documentElement;
  const stored = () => {
    try { return localStorage.getItem("anchorage-theme"); } catch { return null; }
  };
  const dark = () => (root.dataset.theme ?? stored()
    ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => {
      button.textContent = dark() ? "Light" : "Dark";
      button.setAttribute("aria-label", `${button.textContent} theme`);
    };
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("anchorage-theme", root.dataset.theme); } catch { /* not kept */ }
      label();
    });
    label();
    button.hidden = false;
  });
})();
