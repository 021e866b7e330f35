// In a file of its own, which needs no executor, so that `node --test` can test it.
export function countWords(text) {
  return text.split(/\s+/).filter(Boolean).length;
}
