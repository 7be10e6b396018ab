//! Authenticates the peer of a link: when the link begins, and again while it is up, since links outlive certificates.
//!
//! On an encrypted link the certificate has the peer's identity; the greeting repeats it. The dialling end sends nothing before the other
//! end has proved to be the host that was dialled. Plain links are for networks that the grid declares trusted.

use madrigal_identity::{Moment, Peer as Identity, Proof};
use madrigal_proto::mux::{Class, StreamId};

use crate::daemon::Daemon;
use crate::grid::Host;
use crate::link::{Link, Stage};
use crate::poll::Token;
use crate::socket::Recv;
use crate::units::SECOND;
use crate::wire::{self, Hello, StreamHeader, VERSION};

/// The interval at which the certificate of a peer is checked again: it may have been revoked.
const RECHECK: u64 = 5 * SECOND;

impl Daemon {
    /// The TLS handshake is done. If we dialled, the peer must be the host that we dialled; then we greet it.
    pub(crate) fn handshake_done(&mut self, token: Token) -> Result<(), String> {
        let Some(link) = self.links.get(&token) else { return Ok(()) };
        let Some((expected, _)) = link.dialled else { return Ok(()) };
        if let Err(why) = self.check_certificate(link, self.name(expected)) {
            return Err(self.refuse(token, why));
        }
        self.greet(token);
        Ok(())
    }

    /// Handles the greeting, once it is complete.
    pub(crate) fn handle_greeting(&mut self, token: Token) -> Result<(), String> {
        let Some(link) = self.links.get_mut(&token) else { return Ok(()) };
        let Stage::Greeting(inbox) = &mut link.stage else { return Ok(()) };
        let Some((kind, body, len)) = wire::take(inbox, wire::LONGEST_HELLO)? else { return Ok(()) };
        let rest = inbox.split_off(len);
        if kind == wire::REFUSED {
            return Err(format!("refused: {}", String::from_utf8_lossy(&body)));
        }
        if kind == wire::JOIN {
            return self.handle_joining(token, &body, &rest).map_err(|why| self.refuse(token, why));
        }
        let hello: Hello = match (kind, serde_json::from_slice(&body)) {
            (wire::HELLO, Ok(hello)) => hello,
            _ => return Err("the first frame is no greeting".to_owned()),
        };
        let authenticated = self.authenticate(token, &hello);
        if let Ok((peer, _)) = &authenticated {
            self.choose_congestion(token, *peer);
        }
        match authenticated {
            Ok((peer, _)) if self.joins_link(token, &hello) => {
                self.join_link(token, peer, &hello, &rest).map_err(|why| self.refuse(token, why))
            }
            Ok((peer, shown)) => match self.agree_on_stack(token, peer, &hello) {
                Ok(agreed) => self.link_up(token, (peer, shown.as_ref()), agreed, &hello, &rest),
                Err(why) => Err(self.refuse(token, why)),
            },
            Err(why) => Err(self.refuse(token, why)),
        }
    }

    /// Whether a connection is for a link that is up, as the end that dialled it declares.
    fn joins_link(&self, token: Token, hello: &Hello) -> bool {
        self.links.get(&token).is_some_and(|link| match link.dialled {
            Some(_) => link.joins.is_some(),
            None => hello.joins.is_some(),
        })
    }

    /// Sends the other end of a link that is not up the reason of its refusal.
    fn refuse(&mut self, token: Token, why: String) -> String {
        if let Some(link) = self.links.get_mut(&token) {
            link.channel.out().extend(wire::frame(wire::REFUSED, wire::cut(&why).as_bytes()));
            let _ = link.channel.flush();
        }
        why
    }

    /// Authenticates a peer by its greeting, its certificate, and its address. Returns its index in the grid and, on an encrypted link, the
    /// content of its certificate.
    fn authenticate(&self, token: Token, hello: &Hello) -> Result<(usize, Option<Identity>), String> {
        let link = self.links.get(&token).ok_or("gone")?;
        if hello.version != VERSION {
            return Err(format!("version {} of links, here is {VERSION}", hello.version));
        }
        let Some((peer, host)) = self.grid.host(&hello.host) else {
            return Err(format!("the grid has no host `{}`", hello.host));
        };
        if peer == self.own_index {
            return Err(format!("this is {} itself", hello.host));
        }
        match link.dialled {
            Some((expected, _)) if expected != peer => {
                return Err(format!("this is {}, wanted was {}", hello.host, self.name(expected)));
            }
            _ => {}
        }
        if !link.channel.is_encrypted() {
            return self.check_plain(link, host).map(|()| (peer, None));
        }
        self.check_certificate(link, &host.name).map(|shown| (peer, Some(shown)))
    }

    /// Checks that the certificates of an encrypted link's peer are those of this host.
    fn check_certificate(&self, link: &Link, host: &str) -> Result<Identity, String> {
        let credentials = self.credentials.as_ref().map_err(Clone::clone)?;
        let proved = link.up().and_then(|up| up.proved.as_ref());
        let chain = proved
            .map(|proved| proved.chain.as_slice())
            .or_else(|| link.channel.chain())
            .ok_or("it has shown no certificate")?;
        let shown = credentials.judge(chain).map_err(|refusal| refusal.to_string())?;
        match (shown.is(host, credentials.own().user.as_deref()), &shown.user) {
            (Ok(()), _) => Ok(shown),
            (Err(_), Some(user)) if shown.name == host => {
                Err(format!("only a login of {user} vouches for {shown}, and this daemon is not {user}'s"))
            }
            (Err(refusal), _) if link.dialled.is_some() => Err(refusal.to_string()),
            _ => Err(format!("it says it is {host}, and its certificate is that of {shown}")),
        }
    }

    /// Checks that a plain link is allowed: where the network is trusted; inside a site from the host's own addresses only.
    fn check_plain(&self, link: &Link, host: &Host) -> Result<(), String> {
        let own = self.own();
        if link.command.is_some() || link.by_command {
            // The command, such as ssh, has authenticated the peer, and only this user can have run it.
            return Ok(());
        }
        if !self.grid.is_trusted_between(own, host) {
            return Err(format!("between {} and {} links must be enciphered", own.name, host.name));
        }
        let from = link.address.map(|at| at.ip().to_canonical());
        let known = host.addresses.iter().any(|at| Some(at.ip()) == from);
        if self.grid.trusted || known || host.addresses.iter().all(|at| at.ip().is_loopback()) {
            return Ok(());
        }
        let from = from.map_or_else(|| "?".to_owned(), |from| from.to_string());
        Err(format!("{from} is no address of {}", host.name))
    }

    /// Checks the certificate of a link that is up again, if it is time.
    pub(crate) fn recheck_certificate(&mut self, token: Token) -> Result<(), String> {
        let now = self.now;
        let Some(link) = self.links.get(&token) else { return Ok(()) };
        let Some(up) = link.up().filter(|up| up.recheck_at <= now) else { return Ok(()) };
        let shown = self.check_certificate(link, self.name(up.peer))?;
        self.prove_renewed(token);
        let next = self.next_recheck(&shown);
        if let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&token) {
            up.recheck_at = next;
        }
        Ok(())
    }

    /// Sends the peer a proof of our new certificate, if we have one since the link began.
    fn prove_renewed(&mut self, token: Token) {
        let (Ok(credentials), Some(link)) = (&self.credentials, self.links.get_mut(&token)) else { return };
        let own = credentials.own().serial;
        if link.proved_serial.as_ref() == Some(&own) {
            return;
        }
        let Stage::Up(up) = &mut link.stage else { return };
        let proof = up.proved.as_ref().and_then(|proved| credentials.prove(&proved.secrets[0]));
        let header = StreamHeader::Renewed.bytes();
        if let Some(proof) = proof
            && let Ok(stream) = up.mux.open(Class::Urgent, &header)
        {
            // There is room for the first bytes of a stream. The other end resets it when it has them.
            let _ = up.mux.write(stream, &proof.bytes());
            link.proved_serial = Some(own);
            self.unflushed.insert(token);
        }
    }

    /// A proof of a new certificate comes, or a part of it.
    pub(crate) fn handle_renewal(&mut self, token: Token, stream: StreamId) {
        let mut buffer = [0; 4096];
        while let Ok(Recv::Bytes(count)) = self.read_stream((token, stream), &mut buffer) {
            let Some(Link { stage: Stage::Up(up), .. }) = self.links.get_mut(&token) else { return };
            up.proof.extend_from_slice(buffer.get(..count).unwrap_or_default());
            match Proof::read(&up.proof) {
                Ok(None) => {}
                Ok(Some(proof)) => {
                    up.proof = Vec::new();
                    self.reset_stream((token, stream));
                    return match self.take_renewal(token, &proof) {
                        Ok(()) => {}
                        Err(why) => self.close_link_with(token, &why),
                    };
                }
                Err(refusal) => return self.close_link_with(token, &refusal.to_string()),
            }
        }
    }

    /// Takes a complete proof of a new certificate.
    fn take_renewal(&mut self, token: Token, proof: &Proof) -> Result<(), String> {
        let credentials = self.credentials.as_ref().map_err(Clone::clone)?;
        let Some(link) = self.links.get_mut(&token) else { return Ok(()) };
        let Stage::Up(up) = &mut link.stage else { return Ok(()) };
        let proved = up.proved.as_mut().ok_or("a renewed certificate on a plain link")?;
        let shown = credentials.judge_proof(proof, &proved.secrets[1]).map_err(|refusal| refusal.to_string())?;
        proved.chain = proof.chain().to_vec();
        // The new certificate is checked like the old one: it must be the same host's.
        up.recheck_at = self.now;
        self.recheck_certificate(token)?;
        self.log_line(&format!("renewed: {shown}, serial {}, until {}", shown.serial, shown.not_after));
        Ok(())
    }

    /// When a certificate is checked next: after the interval, or when it expires.
    pub(crate) fn next_recheck(&self, shown: &Identity) -> u64 {
        let left = shown.not_after.after(Moment::now()).saturating_add(1);
        let left = u64::try_from(left).unwrap_or(0).saturating_mul(SECOND);
        self.now.saturating_add(left.min(RECHECK))
    }
}
