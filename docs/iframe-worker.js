// Search from a folder: browsers start no worker from file:, so that a hidden frame runs the script of the worker instead.
// Material for MkDocs would load the package iframe-worker from unpkg.com for this.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    this.script = new Promise((resolve, reject) => {
      const page = this.frame.contentDocument;
      page.open();
      page.write("<!doctype html><body></body>");
      page.close();
      this.frame.contentWindow.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
      const script = page.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = resolve;
      script.onerror = reject;
      page.body.append(script);
    });
  }

  postMessage(data) {
    this.script.then(() => {
      const view = this.frame.contentWindow;
      view.dispatchEvent(new view.MessageEvent("message", { data: structuredClone(data) }));
    });
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = window.IFrameWorker = IFrameWorker;
