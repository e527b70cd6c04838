// Sets the theme before the first paint. The choice is stored in this browser only.
"use strict";
{
  const stored = (() => { try { return localStorage.getItem("headrace-theme"); } catch { return null; } })();
  if (stored === "dark" || stored === "light") document.documentElement.dataset.theme = stored;
}
