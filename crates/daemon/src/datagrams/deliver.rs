//! What comes by a tunnel, and its end.

use crate::daemon::Daemon;
use crate::datagrams::frame::{self, Note};
use crate::datagrams::tunnel::{Side, Tunnel};
use crate::datagrams::udp;
use crate::poll::Token;
use crate::socket::{self, Recv};

/// Reads of one pass.
const MOST_READ: usize = 16;

impl Daemon {
    /// The stream of a tunnel changed.
    pub(crate) fn handle_tunnel_stream(&mut self, tunnel: Token) {
        let mut buffer = std::mem::take(&mut self.link_buffer);
        for count in 0.. {
            let Some(stream) = self.datagrams.tunnels.get_mut(&tunnel).and_then(|tunnel| tunnel.stream.as_mut()) else {
                break;
            };
            stream.flush();
            if count == MOST_READ {
                self.runnable.push_back(stream.token);
                break;
            }
            match socket::recv(&stream.socket, &mut buffer) {
                Ok(Recv::Bytes(len)) => {
                    stream.inbox.extend_from_slice(buffer.get(..len).unwrap_or_default());
                    self.handle_frames(tunnel);
                }
                Ok(Recv::WouldBlock) => break,
                Ok(Recv::End) | Err(_) => {
                    self.tunnel_stream_ended(tunnel);
                    break;
                }
            }
        }
        self.link_buffer = buffer;
    }

    fn handle_frames(&mut self, tunnel: Token) {
        let stream = |daemon: &mut Self| {
            daemon.datagrams.tunnels.get_mut(&tunnel)?.stream.as_mut().map(|s| std::mem::take(&mut s.inbox))
        };
        let Some(mut inbox) = stream(self) else { return };
        let mut at = 0;
        while let Some((flow, bytes, len)) = inbox.get(at..).and_then(frame::take) {
            if flow != frame::NOTES {
                self.deliver_datagram(tunnel, flow, bytes);
            } else if let Ok(note) = serde_json::from_slice::<Note>(bytes) {
                self.handle_stream_note(tunnel, note);
            }
            at += len;
        }
        inbox.drain(..at);
        if let Some(stream) = self.datagrams.tunnels.get_mut(&tunnel).and_then(|tunnel| tunnel.stream.as_mut()) {
            stream.inbox = inbox;
        }
    }

    /// Gives a datagram of the other end to the program that it is for.
    pub(crate) fn deliver_datagram(&mut self, tunnel: Token, flow: u32, bytes: &[u8]) {
        let now = self.now;
        let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) else { return };
        let delivered = match &mut own.side {
            Side::Near(near) => match near.flows.address(now, flow) {
                Some(to) => udp::send(&near.socket, bytes, Some(to)).is_ok(),
                None => false,
            },
            Side::Far(_) => self.send_to_port(tunnel, flow, bytes),
        };
        if let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) {
            *(if delivered { &mut own.counts.received } else { &mut own.counts.dropped }) += 1;
        }
    }

    fn tunnel_stream_ended(&mut self, tunnel: Token) {
        let Some(own) = self.datagrams.tunnels.get_mut(&tunnel) else { return };
        let stream = own.stream.take();
        let is_near = own.near().is_some();
        if let Some(stream) = stream {
            self.descriptors.remove(&stream.token);
        }
        self.close_quic_of(tunnel, "the stream of the tunnel ended");
        if is_near { self.near_stream_ended(tunnel) } else { self.drop_tunnel(tunnel) }
    }

    /// Ends one end of a tunnel; the other one notices by its stream.
    pub(crate) fn drop_tunnel(&mut self, tunnel: Token) {
        self.close_quic_of(tunnel, "the tunnel ended");
        let Some(Tunnel { side, stream, counts, .. }) = self.datagrams.tunnels.remove(&tunnel) else { return };
        self.descriptors.remove(&tunnel);
        if let Some(stream) = stream {
            self.descriptors.remove(&stream.token);
        }
        let what = match side {
            Side::Near(near) => format!("to {}:{}", near.target.host, near.target.port),
            Side::Far(far) => {
                for one in far.sockets.values() {
                    self.descriptors.remove(&one.token);
                }
                format!("of {} to port {}", far.from, far.port)
            }
        };
        // After the last tunnel the port of QUIC is closed, once the other ends have been notified.
        self.datagrams.quic.iter_mut().for_each(|quic| quic.stirred = true);
        self.log_line(&format!(
            "datagrams {what} ended: {} sent, {} received, {} without room, {} lost",
            counts.sent, counts.received, counts.dropped, counts.lost
        ));
    }
}
