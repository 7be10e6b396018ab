//! Stands between daemons and etcd, and lets requests fail as a test wants it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// What becomes of a request.
pub(crate) enum Act {
    Pass,
    /// It is answered with this status and text, and etcd does not see it.
    Refuse(u16, &'static str),
    /// It is answered with this, and etcd does not see it.
    Answer(&'static str),
    /// etcd does it; then this is done, and the answer is lost.
    Lose(Box<dyn FnOnce() + Send>),
}

/// Decides by the path of a request and its content.
pub(crate) type Acts = Box<dyn FnMut(&str, &Value) -> Act + Send>;

/// Begins one before the etcd at an address. Its URL.
pub(crate) fn begin(etcd: String, acts: Acts) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let acts = Arc::new(Mutex::new(acts));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (etcd, acts) = (etcd.clone(), Arc::clone(&acts));
            // What fails here fails for the daemon.
            std::thread::spawn(move || serve(client, &etcd, &acts));
        }
    });
    url
}

/// One request a connection.
fn serve(mut client: TcpStream, etcd: &str, acts: &Mutex<Acts>) -> std::io::Result<()> {
    let (mut head, mut length) = (Vec::new(), 0);
    let mut lines = BufReader::new(client.try_clone()?);
    loop {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let lower = line.to_ascii_lowercase();
        length = lower.strip_prefix("content-length:").map_or(length, |text| text.trim().parse().unwrap());
        if line.trim().is_empty() {
            break;
        }
        if !lower.starts_with("connection:") {
            head.push(line);
        }
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body)?;
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
    let act = acts.lock().unwrap()(&path, &serde_json::from_slice(&body).unwrap_or_default());
    let answer = match &act {
        Act::Refuse(status, text) => Some((*status, format!("{{\"error\":\"{text}\",\"message\":\"{text}\"}}"))),
        Act::Answer(text) => Some((200, (*text).to_owned())),
        Act::Pass | Act::Lose(_) => None,
    };
    if let Some((status, text)) = answer {
        let length = text.len();
        return write!(client, "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{text}");
    }
    let mut server = TcpStream::connect(etcd.trim_start_matches("http://"))?;
    server.write_all(format!("{}Connection: close\r\n\r\n", head.concat()).as_bytes())?;
    server.write_all(&body)?;
    if let Act::Lose(then) = act {
        server.read_to_end(&mut Vec::new())?;
        then();
        return Ok(());
    }
    std::io::copy(&mut server, &mut client).map(drop)
}

/// The keys and values that a transaction puts.
pub(crate) fn puts(body: &Value) -> Vec<(String, Vec<u8>)> {
    let bytes = |value: &Value| STANDARD.decode(value.as_str().unwrap_or_default()).unwrap();
    let all = body["success"].as_array().map(Vec::as_slice).unwrap_or_default();
    let puts = all.iter().map(|one| &one["request_put"]).filter(|put| !put.is_null());
    puts.map(|put| (String::from_utf8(bytes(&put["key"])).unwrap(), bytes(&put["value"]))).collect()
}
