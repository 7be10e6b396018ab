//! Churn in Rust with tokio: tasks on a few threads. See ../../../README.md for what goes over the wire.
//!
//!     churn-tokio server PORT BESIDE
//!     churn-tokio client PORT TASKS REQUESTS SIZE END SECONDS BESIDE SEED

use std::io::{self, ErrorKind, Write as _};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

const PERIOD: usize = 65521;
const CHUNK: usize = 65536;
const PATIENCE: Duration = Duration::from_secs(20);
const ENDS: [&str; 4] = ["close", "linger0", "half", "kill"];

static OVER: AtomicBool = AtomicBool::new(false);
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut x = 12345_u32;
    let mut table: Vec<u8> = (0..PERIOD)
        .map(|_| {
            x = x.wrapping_mul(1_103_515_245).wrapping_add(12345) & 0x7fff_ffff;
            (x >> 16) as u8
        })
        .collect();
    table.extend_from_within(..);
    table.extend_from_within(..PERIOD);
    table
});

/// The connection ended otherwise than it should; it has been told.
struct Broken;

fn print_line(line: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn mix(x: u32) -> u32 {
    let x = x.wrapping_mul(2_654_435_761);
    let x = (x ^ x >> 15).wrapping_mul(2_246_822_519);
    x ^ x >> 13
}

fn size_of(id: u32, k: u32, most: u32) -> u32 {
    let h = mix(id.wrapping_add(k.wrapping_mul(40503)));
    let limit = if h % 8 == 0 { most } else { most / 50 };
    1 + h / 8 % limit.max(1)
}

fn content(id: u32, direction: u32, position: u64, length: usize) -> &'static [u8] {
    let start = u64::from(mix(id.wrapping_mul(2).wrapping_add(direction) ^ 0x9e37_79b9)) % PERIOD as u64;
    let start = ((start + position) % PERIOD as u64) as usize;
    &TABLE[start..start + length]
}

struct Peer {
    stream: TcpStream,
    id: u32,
    may_break: bool,
    buffer: Vec<u8>,
}

impl Peer {
    fn fail(&self, what: &str, error: &io::Error) -> Broken {
        if error.kind() == ErrorKind::TimedOut {
            print_line(&format!("timeout {what} of connection {}", self.id));
        } else if !self.may_break {
            print_line(&format!("error {what} of connection {}: {error}", self.id));
        }
        Broken
    }

    async fn put(&mut self, direction: u32, mut position: u64, mut length: usize) -> Result<(), Broken> {
        while length > 0 {
            let part = length.min(CHUNK);
            let sent = timeout(PATIENCE, self.stream.write_all(content(self.id, direction, position, part))).await;
            sent.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())).map_err(|e| self.fail("send", &e))?;
            position += part as u64;
            length -= part;
        }
        Ok(())
    }

    async fn read(&mut self, most: usize) -> io::Result<usize> {
        timeout(PATIENCE, self.stream.read(&mut self.buffer[..most])).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
    }

    /// Receives and checks; false when the end came before a byte of it.
    async fn take(&mut self, direction: u32, position: u64, length: usize) -> Result<bool, Broken> {
        let mut got = 0;
        while got < length {
            let done = self.read((length - got).min(CHUNK)).await.map_err(|e| self.fail("receive", &e))?;
            if done == 0 {
                if got == 0 {
                    return Ok(false);
                }
                return Err(self.fail("receive", &io::Error::other(format!("the end came {got} bytes into {length}"))));
            }
            let right = content(self.id, direction, position + got as u64, done);
            if self.buffer[..done] != *right {
                let wrong: Vec<usize> = (0..done).filter(|&i| self.buffer[i] != right[i]).collect();
                let at = position + got as u64 + wrong[0] as u64;
                print_line(&format!("wrong {} bytes from position {at} of connection {}", wrong.len(), self.id));
            }
            got += done;
        }
        Ok(true)
    }
}

async fn serve(stream: TcpStream) -> Result<(), Broken> {
    let mut peer = Peer { stream, id: 0, may_break: true, buffer: vec![0; CHUNK] };
    let _ = peer.stream.set_nodelay(true);
    let mut hello = [0; 16];
    peer.stream.read_exact(&mut hello).await.map_err(|_| Broken)?;
    let word = |at: usize| u32::from_be_bytes(hello[at..at + 4].try_into().unwrap());
    if &hello[..4] != b"MCHN" {
        print_line("wrong 16 bytes of a greeting");
        return Err(Broken);
    }
    let (id, most, end) = (word(4), word(8), ENDS[word(12) as usize]);
    (peer.id, peer.may_break) = (id, end == "linger0" || end == "kill");
    let (mut position, mut k) = (0, 0);
    loop {
        let length = size_of(id, k, most) as usize;
        if !peer.take(0, position, length).await? {
            break;
        }
        peer.put(1, position, length).await?;
        position += length as u64;
        k += 1;
    }
    if end == "half" {
        peer.put(1, position, size_of(id, 65535, most) as usize).await?;
    }
    Ok(())
}

async fn connection(port: u16, id: u32, requests: u32, most: u32, end: &str) -> Result<(), Broken> {
    let stream = match TcpStream::connect(("127.0.0.1", port)).await {
        Ok(stream) => stream,
        Err(error) => {
            if error.kind() != ErrorKind::AddrNotAvailable {
                print_line(&format!("error connect of connection {id}: {error}"));
            }
            sleep(Duration::from_millis(10)).await;
            return Err(Broken);
        }
    };
    CONNECTIONS.fetch_add(1, Relaxed);
    let _ = stream.set_nodelay(true);
    let mut peer = Peer { stream, id, may_break: false, buffer: vec![0; CHUNK] };
    let number = ENDS.iter().position(|&e| e == end).unwrap() as u32;
    let hello = [*b"MCHN", id.to_be_bytes(), most.to_be_bytes(), number.to_be_bytes()].concat();
    peer.stream.write_all(&hello).await.map_err(|e| peer.fail("send", &e))?;
    let mut position = 0;
    for k in 0..requests {
        if OVER.load(Relaxed) {
            break;
        }
        let length = size_of(id, k, most) as usize;
        peer.put(0, position, length).await?;
        if !peer.take(1, position, length).await? {
            print_line(&format!("error the end came in place of an answer of connection {id}"));
            return Err(Broken);
        }
        position += length as u64;
        BYTES.fetch_add(2 * length as u64, Relaxed);
    }
    if end == "half" {
        peer.stream.shutdown().await.map_err(|e| peer.fail("shutdown", &e))?;
        if !peer.take(1, position, size_of(id, 65535, most) as usize).await? {
            print_line(&format!("error nothing came after the half close of connection {id}"));
        } else if peer.read(1).await.map_err(|e| peer.fail("receive", &e))? != 0 {
            print_line(&format!("error no end after the half close of connection {id}"));
        }
    }
    if end == "linger0" {
        #[allow(deprecated)]
        let _ = peer.stream.set_linger(Some(Duration::ZERO));
    }
    Ok(())
}

/// Children that end at once, beside everything else. A thread of its own: fork(2) is no business of tokio's.
fn start_beside(how: &str) {
    let fork = match how {
        "none" => return,
        other => other == "fork",
    };
    std::thread::spawn(move || {
        while !OVER.load(Relaxed) {
            if fork {
                // SAFETY: the child calls nothing but _exit(2).
                unsafe {
                    match libc::fork() {
                        0 => libc::_exit(0),
                        child => libc::waitpid(child, std::ptr::null_mut(), 0),
                    };
                }
            } else if let Err(error) = std::process::Command::new("/bin/true").status() {
                print_line(&format!("error beside: {error}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

async fn server(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a listener");
    print_line("ready");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve(stream))),
            Err(error) => print_line(&format!("error accept: {error}")),
        }
    }
}

async fn client(port: u16, words: &[String]) {
    let number = |at: usize| words[at].parse::<u32>().expect("a number");
    let (tasks, requests, most, seconds, seed) = (number(0), number(1), number(2), number(4), number(6));
    let mut all = Vec::new();
    for task in 0..tasks {
        let end = words[3].clone();
        all.push(tokio::spawn(async move {
            let mut id = seed.wrapping_add(task.wrapping_mul(1_000_003));
            while !OVER.load(Relaxed) {
                let _ = connection(port, id, requests, most, &end).await;
                id = id.wrapping_add(1);
            }
        }));
    }
    for _ in 0..seconds * 10 {
        sleep(Duration::from_millis(100)).await;
        print_line(&format!("progress {} {}", CONNECTIONS.load(Relaxed), BYTES.load(Relaxed)));
    }
    OVER.store(true, Relaxed);
    for task in all {
        let _ = task.await;
    }
    print_line(&format!("done {} {}", CONNECTIONS.load(Relaxed), BYTES.load(Relaxed)));
}

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let port = words[1].parse().expect("a port");
    if words[0] == "server" {
        start_beside(&words[2]);
        server(port).await;
    } else {
        start_beside(&words[7]);
        client(port, &words[2..]).await;
    }
}
