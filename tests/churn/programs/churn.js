// Churn in Node: one thread, all connections at once. See ../README.md for what goes over the wire.
//   node churn.js server PORT BESIDE
//   node churn.js client PORT CONNECTIONS REQUESTS SIZE END SECONDS BESIDE SEED
'use strict';
const fs = require('fs');
const net = require('net');
const { spawn } = require('child_process');

const PERIOD = 65521, CHUNK = 65536, PATIENCE = 20000;
const ENDS = ['close', 'linger0', 'half', 'kill'];
const TABLE = makeTable();
let over = false, connections = 0, bytes = 0;

const say = (...words) => fs.writeSync(1, words.join(' ') + '\n');

function makeTable() {
  const table = Buffer.alloc(PERIOD + CHUNK);
  let x = 12345;
  for (let i = 0; i < PERIOD; i++) {
    x = (Math.imul(x, 1103515245) + 12345) & 0x7fffffff;
    table[i] = x >> 16;
  }
  for (let i = 0; i < CHUNK; i++) table[PERIOD + i] = table[i];
  return table;
}

function mix(x) {
  x = Math.imul(x, 2654435761) >>> 0;
  x = Math.imul((x ^ x >>> 15) >>> 0, 2246822519) >>> 0;
  return (x ^ x >>> 13) >>> 0;
}

function sizeOf(id, k, most) {
  const h = mix((id + Math.imul(k, 40503)) >>> 0);
  const limit = h % 8 === 0 ? most : Math.floor(most / 50);
  return 1 + Math.floor(h / 8) % Math.max(limit, 1);
}

function content(id, direction, position, length) {
  const start = (mix(((id * 2 + direction) ^ 0x9e3779b9) >>> 0) % PERIOD + position) % PERIOD;
  return TABLE.subarray(start, start + length);
}

function put(socket, id, direction, position, length) {
  while (length > 0) {
    const part = Math.min(length, CHUNK);
    socket.write(content(id, direction, position, part));
    position += part;
    length -= part;
  }
}

// Compares what came with what is right, in parts that do not cross the table's end.
function check(id, direction, position, data) {
  for (let at = 0; at < data.length; at += CHUNK) {
    const part = data.subarray(at, at + CHUNK), right = content(id, direction, position + at, part.length);
    if (part.equals(right)) continue;
    let wrong = 0, first = -1;
    for (let i = 0; i < part.length; i++) {
      if (part[i] !== right[i]) {
        if (wrong++ === 0) first = i;
      }
    }
    say('wrong', wrong, 'bytes from position', position + at + first, 'of connection', id);
  }
}

function serve(socket) {
  let hello = Buffer.alloc(0), id = 0, most = 0, end = 'kill', k = 0, position = 0, need = 0, got = 0;
  socket.setNoDelay(true);
  socket.setTimeout(PATIENCE, () => {
    if (got) say('timeout receive of connection', id);
    socket.destroy();
  });
  socket.on('data', (data) => {
    if (hello.length < 16) {
      const before = hello.length;
      hello = Buffer.concat([hello, data.subarray(0, 16 - before)]);
      data = data.subarray(hello.length - before);
      if (hello.length < 16) return;
      if (hello.toString('latin1', 0, 4) !== 'MCHN') {
        say('wrong 16 bytes of a greeting');
        return socket.destroy();
      }
      id = hello.readUInt32BE(4);
      most = hello.readUInt32BE(8);
      end = ENDS[hello.readUInt32BE(12)];
      need = sizeOf(id, 0, most);
    }
    while (data.length) {
      const part = data.subarray(0, need - got);
      check(id, 0, position + got, part);
      got += part.length;
      data = data.subarray(part.length);
      if (got === need) {
        put(socket, id, 1, position, need);
        position += need;
        need = sizeOf(id, ++k, most);
        got = 0;
      }
    }
  });
  socket.on('end', () => {
    if (got && end !== 'kill' && end !== 'linger0') say('error the end came', got, 'bytes into', need, 'of connection', id);
    if (end === 'half') put(socket, id, 1, position, sizeOf(id, 65535, most));
    socket.end();
  });
  socket.on('error', (error) => {
    if (end !== 'kill' && end !== 'linger0') say('error connection', id, error.message);
  });
}

function connection(port, id, requests, most, end, done) {
  let k = 0, position = 0, need = 0, got = 0, closing = false, finished = false, opened = false;
  const socket = net.connect({ port, host: '127.0.0.1', allowHalfOpen: true });
  const ready = () => {
    if (finished) return;
    finished = true;
    done();
  };
  const ask = () => {
    if (k < requests && !over) {
      need = sizeOf(id, k++, most);
      return put(socket, id, 0, position, need);
    }
    closing = true;
    if (end === 'half') {
      need = sizeOf(id, 65535, most);
      socket.end();
    } else if (end === 'linger0') {
      socket.resetAndDestroy();
    } else {
      socket.destroy();
    }
  };
  socket.setTimeout(PATIENCE, () => {
    say('timeout receive of connection', id);
    socket.destroy();
  });
  socket.on('connect', () => {
    opened = true;
    connections++;
    socket.setNoDelay(true);
    const hello = Buffer.from('MCHN            ', 'latin1');
    hello.writeUInt32BE(id, 4);
    hello.writeUInt32BE(most, 8);
    hello.writeUInt32BE(ENDS.indexOf(end), 12);
    socket.write(hello);
    ask();
  });
  socket.on('data', (data) => {
    if (got + data.length > need) say('error too much came:', got + data.length - need, 'bytes of connection', id);
    check(id, 1, position + got, data);
    got += data.length;
    if (got === need && !closing) {
      bytes += 2 * need;
      position += need;
      got = 0;
      ask();
    }
  });
  socket.on('end', () => {
    if (!closing) say('error the end came in place of an answer of connection', id);
    if (closing && got !== need) say('error', got, 'of', need, 'bytes came after the half close of connection', id);
    socket.destroy();
  });
  socket.on('error', (error) => {
    if (opened || error.code !== 'EADDRNOTAVAIL') say('error of connection', id, error.message);
  });
  socket.on('close', () => (opened ? ready() : setTimeout(ready, 10)));
}

function startBeside(how) {
  if (how === 'none') return;
  const next = () => {
    if (over) return;
    const child = spawn('/bin/true', [], { stdio: 'ignore' });
    child.on('exit', () => setTimeout(next, Math.random() * 20));
    child.on('error', (error) => say('error beside:', error.message));
  };
  next();
}

function server(port) {
  net.createServer({ allowHalfOpen: true }, serve).listen({ port, host: '127.0.0.1', backlog: 1000 }, () => say('ready'));
}

function client(port, count, requests, most, end, seconds, seed) {
  let open = count;
  for (let i = 0; i < count; i++) {
    let id = (seed + i * 1000003) >>> 0;
    const next = () => {
      if (over) {
        if (--open === 0) say('done', connections, bytes);
        return;
      }
      connection(port, id, requests, most, end, () => setImmediate(next));
      id = (id + 1) >>> 0;
    };
    next();
  }
  const clock = setInterval(() => say('progress', connections, bytes), 100);
  setTimeout(() => {
    over = true;
    clearInterval(clock);
  }, seconds * 1000);
}

const [what, port, ...rest] = process.argv.slice(2);
if (what === 'server') {
  startBeside(rest[0]);
  server(Number(port));
} else {
  startBeside(rest[5]);
  client(Number(port), Number(rest[0]), Number(rest[1]), Number(rest[2]), rest[3], Number(rest[4]), Number(rest[6]));
}
