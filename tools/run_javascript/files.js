// `fs`: the files of the granted scope.

const CHUNK_BYTES = 1 << 20;
const FOLLOW = { symlinkFollow: true };
const REASONS = {
  access: ["permission_denied", "the files that were granted to this run do not include it"],
  "not-permitted": ["permission_denied", "the files that were granted to this run do not include it"],
  "read-only": ["permission_denied", "the run may only read here"],
  "no-entry": ["not_found", "there is no such file or folder"],
  exist: ["already_exists", "it exists"],
  "is-directory": ["is_a_directory", "it is a folder: use fs.list"],
  "not-directory": ["not_a_directory", "it is not a folder"],
  "name-too-long": ["invalid_path", "a name is too long"],
  "insufficient-space": ["no_space", "the disk is full"],
  quota: ["no_space", "the disk is full"],
};

/** A file operation that failed: `code` is the reason in snake case. */
export class FileError extends Error {
  constructor(operation, path, code, reason) {
    super(`fs.${operation}(${JSON.stringify(path)}): ${reason} (${code})`);
    this.name = "FileError";
    this.code = code;
    this.path = path;
  }
}

export function makeFiles(getDirectories) {
  let folders = null;

  /** Calls `action` with the granted folder that a path leads through, and the rest of the path. */
  function at(operation, path, action) {
    folders ??= getDirectories().map(([folder, name]) => ({ folder, name }));
    const names = toNames(operation, path, folders);
    const { folder, rest } = locate(folders, names) ?? {};
    if (!folder) throw new FileError(operation, path, "permission_denied", outside(folders));
    try {
      return action(folder, rest.join("/") || ".");
    } catch (error) {
      const reason = errorCode(error);
      if (reason === null) throw error;
      const [code, text] = REASONS[reason] ?? ["io_error", reason];
      throw new FileError(operation, path, code, text);
    }
  }

  const open = (operation, path, openFlags, flags, action) =>
    at(operation, path, (folder, rest) => {
      const file = folder.openAt(FOLLOW, rest, openFlags, flags);
      try {
        return action(file);
      } finally {
        file[Symbol.dispose]?.();
      }
    });

  const readBytes = (path) => open("readBytes", path, {}, { read: true }, readAll);

  return {
    /** A file as text. */
    read(path) {
      const bytes = open("read", path, {}, { read: true }, readAll);
      try {
        return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
      } catch {
        throw new FileError("read", path, "not_utf8", "it is not text in UTF-8: use fs.readBytes");
      }
    },

    /** A file as a `Uint8Array`. */
    readBytes,

    /** Writes a text or bytes as the whole content of a file. Returns the number of bytes. */
    write(path, content) {
      const bytes = toBytes(content);
      open("write", path, { create: true, truncate: true }, { write: true }, (file) => writeAll(file, bytes));
      return bytes.length;
    },

    /** The entries of a folder, sorted by name: objects with `name`, `path` and `type`. */
    list(path) {
      const entries = open("list", path, { directory: true }, { read: true }, readFolder);
      const folder = path.endsWith("/") ? path : `${path}/`;
      const found = entries.map(({ name, type }) => ({ name, path: `${folder}${name}`, type }));
      return found.sort((a, b) => (a.name < b.name ? -1 : 1));
    },

    /** Type, size in bytes and time of the last change. */
    stat(path) {
      const found = at("stat", path, (folder, rest) => folder.statAt(FOLLOW, rest));
      const modified = found.dataModificationTimestamp;
      return {
        type: typeName(found.type),
        size: Number(found.size),
        modified: modified ? new Date(Number(modified.seconds) * 1000 + modified.nanoseconds / 1e6) : null,
      };
    },
  };
}

function toNames(operation, path, folders) {
  if (typeof path !== "string" || !path.startsWith("/")) {
    const reason = `the path is not absolute: begin it with "/", as ${outside(folders)}`;
    throw new FileError(operation, path, "invalid_path", reason);
  }
  const names = [];
  for (const name of path.split("/")) {
    if (name === "..") names.pop();
    else if (name !== "" && name !== ".") names.push(name);
  }
  return names;
}

/** The innermost granted folder that holds a path. */
function locate(folders, names) {
  let best = null;
  for (const { folder, name } of folders) {
    const prefix = name.split("/").filter(Boolean);
    const holds = prefix.length <= names.length && prefix.every((part, index) => part === names[index]);
    if (holds && (!best || prefix.length > best.length)) {
      best = { folder, rest: names.slice(prefix.length), length: prefix.length };
    }
  }
  return best;
}

function outside(folders) {
  const names = folders.map(({ name }) => name).filter((name) => name !== "/");
  return names.length > 0 ? `this run has files in ${names.join(", ")} only` : "this run has no files";
}

function readAll(file) {
  const chunks = [];
  let size = 0;
  for (let isAtEnd = false; !isAtEnd; ) {
    const [chunk, end] = file.read(BigInt(CHUNK_BYTES), BigInt(size));
    chunks.push(chunk);
    size += chunk.length;
    isAtEnd = end || chunk.length === 0;
  }
  return concatenate(chunks, size);
}

function concatenate(chunks, size) {
  if (chunks.length === 1) return chunks[0];
  const bytes = new Uint8Array(size);
  let offset = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, offset);
    offset += chunk.length;
  }
  return bytes;
}

function writeAll(file, bytes) {
  for (let offset = 0; offset < bytes.length; ) {
    offset += Number(file.write(bytes.subarray(offset, offset + CHUNK_BYTES), BigInt(offset)));
  }
}

function readFolder(folder) {
  const stream = folder.readDirectory();
  const entries = [];
  for (let entry; (entry = stream.readDirectoryEntry()); ) {
    entries.push({ name: entry.name, type: typeName(entry.type) });
  }
  return entries;
}

function typeName(type) {
  return { "regular-file": "file", directory: "folder", "symbolic-link": "link" }[type] ?? "other";
}

function toBytes(content) {
  if (typeof content === "string") return new TextEncoder().encode(content);
  if (content instanceof ArrayBuffer) return new Uint8Array(content);
  if (ArrayBuffer.isView(content)) return new Uint8Array(content.buffer, content.byteOffset, content.byteLength);
  throw new TypeError("fs.write takes a string, a Uint8Array or an ArrayBuffer: use JSON.stringify(...) for JSON");
}

/** The error code of WASI that a host call threw, or null. */
function errorCode(error) {
  const code = error?.payload ?? error;
  return typeof code === "string" ? code : null;
}
