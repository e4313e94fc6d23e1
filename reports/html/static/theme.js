"use strict";
/* Light or dark: as the system says, until the button says otherwise. Runs before the page is drawn. */
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try { return localStorage.getItem("stride-theme"); } catch { return null; }
  };
  const apply = () => {
    const theme = stored() ?? (system.matches ? "dark" : "light");
    root.classList.toggle("dark", theme === "dark");
    const button = document.getElementById("theme");
    if (button) button.textContent = theme === "dark" ? "Light" : "Dark";
    document.dispatchEvent(new Event("themechange"));
  };
  apply();
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.hidden = false;
    button.addEventListener("click", () => {
      try {
        localStorage.setItem("stride-theme", root.classList.contains("dark") ? "light" : "dark");
      } catch { /* the choice is not kept where the browser keeps nothing */ }
      apply();
    });
    apply();
  });
})();
