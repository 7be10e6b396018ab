# needs: node
# An HTTP server and client with kept connections, and a raw stream.
cat > s.js <<'X'
const http = require('http'), net = require('net');
http.createServer((q, r) => { let n = 0; q.on('data', d => n += d.length); q.on('end', () => r.end(q.url + ' ' + n)); }).listen(+process.argv[2], '127.0.0.1');
net.createServer(s => s.pipe(s)).listen(+process.argv[3], '127.0.0.1');
X
cat > c.js <<'X'
const http = require('http'), net = require('net'), crypto = require('crypto');
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 }), [p, e] = process.argv.slice(2).map(Number);
const ask = i => new Promise((ok, no) => { const q = http.request({ port: p, host: '127.0.0.1', path: '/' + i, method: 'POST', agent }, r => { let t = ''; r.on('data', d => t += d); r.on('end', () => ok(t)); }); q.on('error', no); q.end('x'.repeat(i * 10)); });
(async () => {
  const all = await Promise.all([...Array(200).keys()].map(ask));
  console.log(all.length, crypto.createHash('sha256').update(all.join()).digest('hex')); agent.destroy();
  const s = net.connect(e, '127.0.0.1'), h = crypto.createHash('sha256'); let n = 0; const b = Buffer.alloc(4000000, 'abcdefg');
  s.on('data', d => { h.update(d); n += d.length; if (n === b.length) s.end(); }); s.on('close', () => console.log(n, h.digest('hex'))); s.write(b);
})();
X
node s.js $P1 $P2 &
await $P1; await $P2
node c.js $P1 $P2
