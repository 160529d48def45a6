// Light text stands on a dark ground.
function isDark(element) {
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  context.fillStyle = getComputedStyle(element).color;
  context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data[1] > 127;
}

function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.title = "erfscope explorer";
  frame.style.cssText = "display: block; width: 100%; height: 50rem; border: 0";
  frame.srcdoc = model.get("page");
  el.append(frame);
  const follow = () => {
    const page = frame.contentDocument?.documentElement;
    if (page) page.style.colorScheme = isDark(el) ? "dark" : "light";
  };
  const themes = new MutationObserver(follow);
  for (const root of [document.documentElement, document.body]) themes.observe(root, { attributes: true });
  frame.addEventListener("load", () => {
    const page = frame.contentDocument.documentElement;
    page.style.overflow = "hidden";
    follow();
    new ResizeObserver(() => { frame.style.height = `${page.offsetHeight}px`; }).observe(page);
  });
  return () => themes.disconnect();
}

export default { render };
