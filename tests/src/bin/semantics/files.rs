//! Files and sockets: sendfile(2), splice(2), stdio on a socket.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io::Write as _;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::ptr;

use madrigal_tests::net::{self, recv_exact, recv_up_to, send_all};
use madrigal_tests::pair::{self, Pair};

use crate::both;

crate::checks![
    sendfile_whole,
    sendfile_offset_null,
    sendfile_nonblocking,
    sendfile_past_end,
    sendfile_beside_a_sender,
    splice_into_socket,
    splice_out_of_socket,
    splice_out_with_ring_bytes,
    stdio_both_ways,
    stdio_reads_ring_bytes,
    stdio_by_lines,
    stdio_reopened,
    dprintf_to_socket,
    splice_after_end,
    stdio_after_end,
    tee_like_copy,
];

fn pattern(n: usize) -> Vec<u8> {
    (0..n as u32).map(|i| ((i / 9) ^ i) as u8).collect()
}

pub(crate) fn file_of(bytes: &[u8]) -> OwnedFd {
    // SAFETY: a plain name.
    let fd = net::new_fd(unsafe { libc::memfd_create(c"semantics".as_ptr(), libc::MFD_CLOEXEC) });
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes).unwrap();
    file.into()
}

fn sendfile(to: &OwnedFd, from: &OwnedFd, offset: Option<&mut i64>, n: usize) -> net::Count {
    let offset = offset.map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: our own offset, or none.
    net::count(unsafe { libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), offset, n) })
}

fn sendfile_whole() {
    let p = Pair::warm();
    let bytes = pattern(3_000_000);
    let file = file_of(&bytes);
    both(
        || {
            let mut at = 0;
            while (at as usize) < bytes.len() {
                let before = at;
                let n = sendfile(&p.c, &file, Some(&mut at), bytes.len() - before as usize).unwrap();
                assert_eq!(at, before + n as i64);
            }
        },
        || assert!(recv_exact(&p.s, bytes.len()) == bytes),
    );
}

fn sendfile_offset_null() {
    let p = Pair::warm();
    let file = file_of(&pattern(1000));
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::lseek(file.as_raw_fd(), 100, libc::SEEK_SET) }, 100);
    assert_eq!(sendfile(&p.c, &file, None, 300), Ok(300));
    assert!(recv_exact(&p.s, 300) == pattern(1000)[100..400]);
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_CUR) }, 400, "the file's own place moved");
}

fn sendfile_nonblocking() {
    let p = Pair::warm();
    let bytes = pattern(40 << 20);
    let file = file_of(&bytes);
    net::set_nonblocking(&p.c, true);
    let (mut at, mut got) = (0i64, 0);
    while got < bytes.len() {
        let before = at;
        let left = bytes.len() - at as usize;
        match sendfile(&p.c, &file, Some(&mut at), left) {
            Ok(n) => assert_eq!(before + n as i64, at),
            Err(libc::EAGAIN) => assert_eq!(before, at),
            Err(e) => panic!("errno {e}"),
        }
        let part = net::recv_up_to(&p.s, (at as usize - got).min(1 << 20));
        assert!(part == bytes[got..got + part.len()]);
        got += part.len();
    }
}

fn sendfile_past_end() {
    let p = Pair::warm();
    let file = file_of(b"short");
    let mut at = 2;
    assert_eq!(sendfile(&p.c, &file, Some(&mut at), 1000), Ok(3));
    assert_eq!(sendfile(&p.c, &file, Some(&mut at), 1000), Ok(0));
    assert_eq!(sendfile(&p.c, &file, Some(&mut 0), 0), Ok(0));
    assert_eq!(recv_exact(&p.s, 3), b"ort");
    assert_eq!(net::poll(&p.s, libc::POLLIN, 0), 0);
}

fn sendfile_beside_a_sender() {
    // A connection that moves into its ring while one thread is about to call the kernel: each piece is whole, and none is missing.
    const PIECES: usize = 800;
    let file = file_of(&[2; 700]);
    for _ in 0..60 {
        let p = Pair::fresh();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..PIECES).for_each(|_| send_all(&p.c, &[1; 700])));
            scope.spawn(|| (0..PIECES).for_each(|_| assert_eq!(sendfile(&p.c, &file, Some(&mut 0), 700), Ok(700))));
            let mut count = [0; 3];
            for _ in 0..2 * PIECES {
                let piece = recv_exact(&p.s, 700);
                assert!(piece.iter().all(|byte| *byte == piece[0]), "a piece was torn");
                count[piece[0] as usize] += 1;
            }
            assert_eq!(count, [0, PIECES, PIECES]);
        });
    }
}

fn splice_into_socket() {
    let p = Pair::warm();
    let (out, input) = net::pipe();
    send_all(&p.c, b"before ");
    net::write(&input, b"by splice").unwrap();
    assert_eq!(net::splice(&out, &p.c, 100), Ok(9));
    send_all(&p.c, b" after");
    assert_eq!(recv_exact(&p.s, 22), b"before by splice after");
}

fn splice_out_of_socket() {
    let p = Pair::warm();
    let (out, input) = net::pipe();
    both(
        || {
            net::sleep_ms(20);
            send_all(&p.c, b"hello");
        },
        || assert_eq!(net::splice(&p.s, &input, 100), Ok(5)),
    );
    assert_eq!(net::read_exact(&out, 5), b"hello");
    send_all(&p.s, b"back");
    assert_eq!(recv_exact(&p.c, 4), b"back");
}

fn splice_out_with_ring_bytes() {
    let p = Pair::warm();
    let (out, input) = net::pipe();
    let bytes = pattern(50_000);
    send_all(&p.c, &bytes[..900]);
    net::await_events(&p.s, libc::POLLIN);
    let mut got = Vec::new();
    both(
        || send_all(&p.c, &bytes[900..]),
        || {
            while got.len() < bytes.len() {
                let n = net::splice(&p.s, &input, 4096).unwrap();
                got.extend(net::read_exact(&out, n));
            }
        },
    );
    assert!(got == bytes);
}

/// A C stream on a socket.
struct Stream(*mut libc::FILE);

impl Stream {
    fn open(fd: OwnedFd) -> Self {
        // SAFETY: the stream takes the descriptor over.
        let file = unsafe { libc::fdopen(fd.into_raw_fd(), c"r+".as_ptr()) };
        assert!(!file.is_null());
        Self(file)
    }

    fn write(&self, text: &[u8]) {
        // SAFETY: an open stream, our own buffer.
        assert_eq!(unsafe { libc::fwrite(text.as_ptr().cast(), 1, text.len(), self.0) }, text.len());
        // SAFETY: an open stream.
        assert_eq!(unsafe { libc::fflush(self.0) }, 0);
    }

    fn line(&self) -> Vec<u8> {
        let mut buf = [0u8; 256];
        // SAFETY: an open stream, our own buffer.
        let got = unsafe { libc::fgets(buf.as_mut_ptr().cast(), 256, self.0) };
        assert!(!got.is_null());
        buf.split(|b| *b == 0).next().unwrap().to_vec()
    }

    fn close(self) {
        // SAFETY: an open stream, not used any more.
        assert_eq!(unsafe { libc::fclose(self.0) }, 0);
    }
}

fn stdio_both_ways() {
    let Pair { c, s } = Pair::warm();
    let stream = Stream::open(net::dup(&s));
    stream.write(b"line 42\n");
    assert_eq!(recv_exact(&c, 8), b"line 42\n");
    send_all(&c, b"reply\n");
    assert_eq!(stream.line(), b"reply\n");
    stream.close();
    send_all(&s, b"still open");
    assert_eq!(recv_exact(&c, 10), b"still open");
    drop(s);
    assert_eq!(net::read(&c, &mut [0; 4]), Ok(0));
}

fn stdio_reads_ring_bytes() {
    let Pair { c, s } = Pair::warm();
    send_all(&c, b"first\nsecond\n");
    net::await_events(&s, libc::POLLIN);
    let stream = Stream::open(s);
    assert_eq!(stream.line(), b"first\n");
    assert_eq!(stream.line(), b"second\n");
    send_all(&c, b"third\n");
    assert_eq!(stream.line(), b"third\n");
    stream.close();
    assert_eq!(net::read(&c, &mut [0; 4]), Ok(0));
}

/// A sender that is done (half closed, or gone) and whose bytes are unread.
fn through(bytes: &[u8], closed: bool) -> Pair {
    let p = Pair::warm();
    send_all(&p.c, bytes);
    if closed {
        let Pair { c, s } = p;
        drop(c);
        return Pair { c: net::dup(&s), s };
    }
    net::shutdown(&p.c, libc::SHUT_WR).unwrap();
    p
}

fn splice_after_end() {
    for closed in [false, true] {
        let p = through(&pattern(800), closed);
        let (out, input) = net::pipe();
        assert_eq!(net::splice(&p.s, &input, 4096), Ok(800), "closed: {closed}");
        assert!(net::read_exact(&out, 800) == pattern(800));
        assert_eq!(net::splice(&p.s, &input, 4096), Ok(0));
    }
}

fn stdio_after_end() {
    for closed in [false, true] {
        let p = through(b"one line\n", closed);
        let stream = Stream::open(net::dup(&p.s));
        assert_eq!(stream.line(), b"one line\n", "closed: {closed}");
        stream.close();
    }
}

fn stdio_by_lines() {
    // Both ends by stdio from the start, many lines.
    let Pair { c, s } = Pair::fresh();
    let (a, b) = (Stream::open(c), Stream::open(s));
    for i in 0..2000 {
        let text = format!("question {i}\n");
        a.write(text.as_bytes());
        assert_eq!(b.line(), text.as_bytes());
        b.write(b"answer\n");
        // A stream that was written is repositioned before it is read: not on sockets, but C wants a flush, which was done.
        assert_eq!(a.line(), b"answer\n");
    }
    a.close();
    b.close();
}

/// Another file takes the place of a stream's socket, which is closed inside the C library.
fn stdio_reopened() {
    let file = file_of(b"a file\n");
    let name = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    for reopen in [libc::freopen, libc::freopen64] {
        let Pair { c, s } = Pair::warm();
        let stream = Stream::open(s);
        // SAFETY: an open stream, bytes of our own.
        assert_eq!(unsafe { libc::fwrite(c"last".as_ptr().cast(), 1, 4, stream.0) }, 4);
        // SAFETY: a name, a mode, and an open stream.
        assert_eq!(unsafe { reopen(name.as_ptr(), c"r".as_ptr(), stream.0) }, stream.0);
        assert_eq!(recv_up_to(&c, 100), b"last", "and then the end");
        assert_eq!(stream.line(), b"a file\n");
        // SAFETY: an open stream.
        let fd = unsafe { libc::fileno(stream.0) };
        assert_eq!(pair::path(fd), None, "no connection's any more");
        stream.close();
    }
}

fn dprintf_to_socket() {
    let p = Pair::warm();
    send_all(&p.s, b"before ");
    assert_eq!(net::print(&p.s, c"between"), Ok(7));
    send_all(&p.s, b" after");
    assert_eq!(recv_exact(&p.c, 20), b"before between after");
}

fn tee_like_copy() {
    // A proxy by splice between two connections.
    let (left, right) = (Pair::warm(), Pair::warm());
    let (out, input) = net::pipe();
    let bytes = pattern(1_000_000);
    both(
        || {
            both(
                || {
                    send_all(&left.c, &bytes);
                    net::shutdown(&left.c, libc::SHUT_WR).unwrap();
                },
                || {
                    loop {
                        let n = net::splice(&left.s, &input, 65_536).expect("splice");
                        if n == 0 {
                            break;
                        }
                        let mut done = 0;
                        while done < n {
                            done += net::splice(&out, &right.c, n - done).unwrap();
                        }
                    }
                    net::shutdown(&right.c, libc::SHUT_WR).unwrap();
                },
            );
        },
        || {
            let got = net::recv_up_to(&right.s, bytes.len() + 1);
            let wrong = got.iter().zip(&bytes).position(|(a, b)| a != b);
            assert!(got == bytes, "{} of {} bytes, first wrong one {wrong:?}", got.len(), bytes.len());
        },
    );
}
