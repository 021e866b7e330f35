// Before each test of test262: what a host of them defines.
let finish;
const finished = new Promise((resolve, reject) => {
  finish = (error) => (error === undefined ? resolve() : reject(error));
});
globalThis.$DONE = (error) => finish(error);
function reportCompare() {}
var $262 = {
  global: globalThis,
  evalScript: (text) => (0, eval)(text),
  gc() {},
  detachArrayBuffer: (buffer) => void structuredClone(buffer, { transfer: [buffer] }),
};
