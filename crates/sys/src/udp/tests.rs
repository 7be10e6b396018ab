use std::net::Ipv4Addr;

use super::*;

fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Received {
    loop {
        if let Ok(got) = socket.receive(buffer) {
            return got;
        }
        raw::wait_readable(&[socket.fd.as_raw_fd()], 1_000_000);
    }
}

/// Several datagrams by one call, between a socket at all addresses and one at one, there and back.
#[test]
fn datagrams_come_as_they_were_cut_and_the_answer_leaves_where_they_came() {
    let everywhere = UdpSocket::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0)).unwrap();
    let here = UdpSocket::bind(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).unwrap();
    let at = IpAddr::from([127, 0, 0, 7]);
    let to = SocketAddr::new(at, everywhere.at().port());
    let bytes: Vec<u8> = (0..2500u32).map(|at| at as u8).collect();
    here.send(to, None, Some(1000), &bytes).unwrap();
    let (mut all, mut buffer) = (Vec::new(), vec![0; 65536]);
    while all.len() < bytes.len() {
        let got = receive(&everywhere, &mut buffer);
        assert!(got.segment == 1000 || got.len == 500 || got.len == 1000, "{} of {}", got.segment, got.len);
        assert_eq!((got.from, got.to), (here.at(), Some(at)));
        all.extend_from_slice(&buffer[..got.len]);
    }
    assert_eq!(all, bytes);
    everywhere.send(here.at(), Some(at), None, b"answer").unwrap();
    let answer = receive(&here, &mut buffer);
    assert_eq!((answer.len, answer.from.ip()), (6, at));
}

#[test]
fn a_socket_of_one_peer_takes_nothing_of_others_and_sends_where_it_is_told_without_an_address() {
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
        let Ok(there) = UdpSocket::bind(SocketAddr::new(ip, 0)) else { continue };
        let near = UdpSocket::connect(there.at()).unwrap();
        let other = UdpSocket::bind(SocketAddr::new(ip, 0)).unwrap();
        near.send(there.at(), None, Some(4), b"longer than four").unwrap();
        let mut buffer = [0; 100];
        let first = receive(&there, &mut buffer);
        assert_eq!(first.from, near.at());
        other.send(near.at(), None, None, b"noise").unwrap();
        there.send(near.at(), None, None, b"word").unwrap();
        let got = receive(&near, &mut buffer);
        assert_eq!((&buffer[..got.len], got.from), (&b"word"[..], there.at()));
    }
}

#[test]
fn nobody_there_is_told_with_the_address() {
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
        let Ok(gone) = UdpSocket::bind(SocketAddr::new(ip, 0)) else { continue };
        let to = gone.at();
        drop(gone);
        let socket = UdpSocket::bind(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0)).unwrap();
        socket.watch_errors();
        assert_eq!(socket.unreachable(), None);
        socket.send(to, None, None, b"?").unwrap();
        let told = loop {
            if let Some(told) = socket.unreachable() {
                break told;
            }
        };
        assert_eq!(told, to);
        let one = &UdpSocket::connect(to).unwrap();
        one.send(to, None, None, b"?").unwrap();
        while one.receive(&mut [0; 100]) != Err(Errno::CONNREFUSED) {}
    }
}
