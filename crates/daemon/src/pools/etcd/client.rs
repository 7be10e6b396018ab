//! Requests to etcd, as JSON over HTTP: each with a deadline, to the endpoints in turn until one answers.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use madrigal_sys::time::boot_ns;
use serde_json::{Value, json};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::grid::EtcdSettings;

/// The longest answer: a pool with all of its log.
const LONGEST: u64 = 64 << 20;
/// The longest line of a watch.
const LONGEST_LINE: u64 = 16 << 20;
/// A watch is made anew after this time, so that one whose server is gone without a word is noticed.
const WATCH: Duration = Duration::from_secs(20);

/// What requests share.
pub(super) struct Client {
    agent: ureq::Agent,
    settings: EtcdSettings,
    /// Which endpoint answered last, and the token of the login.
    state: Mutex<(usize, Option<String>)>,
}

impl Client {
    /// Reads the files that the settings name; connects to nothing.
    pub(super) fn new(settings: EtcdSettings) -> Result<Self, String> {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            // Pools are no matter of the proxy that a browser uses.
            .proxy(None)
            .tls_config(tls(&settings)?)
            .build();
        Ok(Self { agent: config.new_agent(), settings, state: Mutex::new((0, None)) })
    }

    /// A request, which has `within` at each endpoint, and ends at `deadline` ([`boot_ns`]) whatever there is still to try.
    pub(super) fn post(&self, path: &str, body: &Value, within: Duration, deadline: u64) -> Result<Value, Failed> {
        self.try_all(deadline, |endpoint, token| {
            let left = within.min(left(deadline));
            let mut response = self.send(endpoint, token, path, body, |config| config.timeout_global(Some(left)))?;
            let read = response.body_mut().with_config().limit(LONGEST).read_to_vec();
            let bytes = read.map_err(|error| Failed::Unanswered(error.to_string()))?;
            check(&bytes, response.status().as_u16())
        })
    }

    /// A watch: its lines until it ends, which it does after [`WATCH`], too. `handle` returns whether it goes on.
    pub(super) fn watch(
        &self,
        body: &Value,
        mut handle: impl FnMut(Value) -> Result<bool, Failed>,
    ) -> Result<(), Failed> {
        self.try_all(boot_ns() + nanoseconds(WATCH), |endpoint, token| {
            let times = |config: Config| {
                let config = config.timeout_connect(Some(Duration::from_secs(2)));
                config.timeout_recv_response(Some(Duration::from_secs(3))).timeout_recv_body(Some(WATCH))
            };
            let response = self.send(endpoint, token, "/v3/watch", body, times)?;
            let status = response.status().as_u16();
            let mut lines = BufReader::new(response.into_body().into_reader());
            loop {
                let mut line = Vec::new();
                match lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
                    Ok(1..) => {}
                    Ok(0) | Err(_) if status != 200 => return Err(Failed::Unanswered(format!("HTTP status {status}"))),
                    // Its time is over, or etcd has ended it.
                    Ok(0) | Err(_) => return Ok(()),
                }
                if !handle(check(&line, status)?)? {
                    return Ok(());
                }
            }
        })
    }

    fn send(
        &self,
        endpoint: &str,
        token: Option<&str>,
        path: &str,
        body: &Value,
        times: impl FnOnce(Config) -> Config,
    ) -> Result<ureq::http::Response<ureq::Body>, Failed> {
        let request = self.agent.post(format!("{endpoint}{path}")).header("Content-Type", "application/json");
        let request = match token {
            Some(token) => request.header("Authorization", token),
            None => request,
        };
        let sent = times(request.config()).build().send(body.to_string());
        sent.map_err(|error| Failed::Unanswered(error.to_string()))
    }

    /// Tries the endpoints, beginning with the one that answered last; logs in where that is asked for.
    fn try_all<R>(
        &self,
        deadline: u64,
        mut one: impl FnMut(&str, Option<&str>) -> Result<R, Failed>,
    ) -> Result<R, Failed> {
        let endpoints = &self.settings.endpoints;
        let mut why = "no endpoint is given".to_owned();
        // Once more each for a connection that was kept and has ended, and for a token that is out of date.
        for _ in 0..endpoints.len() + 2 {
            let (at, token) = self.state().clone();
            let Some(endpoint) = endpoints.get(at % endpoints.len().max(1)) else { break };
            let token = match (&self.settings.user, token) {
                (Some(_), None) => self.log_in(endpoint, deadline).map(Some),
                (_, token) => Ok(token),
            };
            match token.and_then(|token| one(endpoint, token.as_deref())) {
                Ok(result) => return Ok(result),
                Err(Failed::Refused(error)) => return Err(Failed::Refused(format!("{endpoint}: {error}"))),
                Err(Failed::Login(error)) => {
                    why = format!("{endpoint}: {error}");
                    self.state().1 = None;
                }
                Err(Failed::Unanswered(error)) => {
                    why = format!("{endpoint}: {error}");
                    self.state().0 = at + 1;
                }
            }
            if boot_ns() >= deadline {
                break;
            }
        }
        Err(Failed::Unanswered(why))
    }

    fn log_in(&self, endpoint: &str, deadline: u64) -> Result<String, Failed> {
        let password = match &self.settings.password_file {
            Some(file) => {
                let read = std::fs::read_to_string(file);
                read.map_err(|error| Failed::Refused(format!("{}: {error}", file.display())))?.trim_end().to_owned()
            }
            None => String::new(),
        };
        let body = json!({"name": self.settings.user, "password": password});
        let within = Duration::from_secs(3).min(left(deadline));
        let times = |config: Config| config.timeout_global(Some(within));
        let mut response = self.send(endpoint, None, "/v3/auth/authenticate", &body, times)?;
        let bytes = response.body_mut().read_to_vec().map_err(|error| Failed::Unanswered(error.to_string()))?;
        let value = check(&bytes, response.status().as_u16())?;
        let token = value["token"].as_str().ok_or_else(|| Failed::Refused("it gave no token".to_owned()))?.to_owned();
        self.state().1 = Some(token.clone());
        Ok(token)
    }

    fn state(&self) -> MutexGuard<'_, (usize, Option<String>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Config = ureq::config::ConfigBuilder<ureq::typestate::RequestScope<ureq::typestate::WithBody>>;

/// Why a request failed.
#[derive(thiserror::Error, Debug)]
pub(super) enum Failed {
    /// No answer, or none for now: another endpoint may give one, or the same one later. Whether it was done is not known.
    #[error("{0}")]
    Unanswered(String),
    /// It wants a login, or another one.
    #[error("{0}")]
    Login(String),
    /// etcd refuses, and always will.
    #[error("{0}")]
    Refused(String),
}

/// The answer, unless it is an error: of one request by the status, in a stream by its own member (grpc-gateway's `errors.proto`).
fn check(answer: &[u8], status: u16) -> Result<Value, Failed> {
    let nonsense = |error| Failed::Unanswered(format!("HTTP status {status}, and no JSON: {error}"));
    let value: Value = serde_json::from_slice(answer).map_err(nonsense)?;
    let error = &value["error"];
    if status == 200 && error.is_null() {
        return Ok(value);
    }
    let message = [&value["message"], &error["message"], error].iter().find_map(|message| message.as_str());
    let message = message.unwrap_or("no word of why").to_owned();
    let status = if status == 200 { number(&error["http_code"]) } else { status.into() };
    let texts = ["invalid auth token", "revision of auth store is old"];
    match status {
        _ if status == 401 || texts.iter().any(|text| message.contains(text)) => Err(Failed::Login(message)),
        400 | 403 | 404 | 501 => Err(Failed::Refused(message)),
        // It has no leader now, or too much to do, or ends.
        _ => Err(Failed::Unanswered(message)),
    }
}

/// What is left until a time of [`boot_ns`]: not nothing, which would be no limit.
fn left(deadline: u64) -> Duration {
    Duration::from_nanos(deadline.saturating_sub(boot_ns())).max(Duration::from_millis(1))
}

/// A time in nanoseconds.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn tls(settings: &EtcdSettings) -> Result<TlsConfig, String> {
    let read = |file: &std::path::PathBuf| std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
    if let Some(file) = &settings.ca {
        let pem = Certificate::from_pem(&read(file)?).map_err(|error| format!("{}: {error}", file.display()))?;
        config = config.root_certs(RootCerts::new_with_certs(&[pem]));
    }
    if let (Some(cert), Some(key)) = (&settings.cert, &settings.key) {
        let cert = Certificate::from_pem(&read(cert)?).map_err(|error| format!("{}: {error}", cert.display()))?;
        let key = PrivateKey::from_pem(&read(key)?).map_err(|error| format!("{}: {error}", key.display()))?;
        config = config.client_cert(Some(ClientCert::new_with_certs(&[cert], key)));
    }
    Ok(config.build())
}

/// Bytes, as the gateway has them.
pub(super) fn bytes(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

/// The bytes of a member of an answer; none where there is none.
pub(super) fn decoded(value: &Value) -> Vec<u8> {
    value.as_str().and_then(|text| STANDARD.decode(text).ok()).unwrap_or_default()
}

/// A number of 64 bits, which the gateway writes as a text; 0 where it is left out.
pub(super) fn number(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).or(value.as_u64()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_deadline_is_one_for_all_endpoints() {
        // They take connections, and answer nothing.
        let hung: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let urls = hung.iter().map(|one| format!("http://{}", one.local_addr().unwrap()));
        let settings = EtcdSettings { endpoints: urls.collect(), ..EtcdSettings::default() };
        let client = Client::new(settings).unwrap();
        let time = Duration::from_millis(300);
        let failed = client.post("/v3/kv/range", &json!({}), time, boot_ns() + nanoseconds(time)).unwrap_err();
        assert!(matches!(failed, Failed::Unanswered(_)), "{failed}");
        let asked = hung.iter().filter(|one| {
            one.set_nonblocking(true).unwrap();
            one.accept().is_ok()
        });
        assert_eq!(asked.count(), 1);
    }

    #[test]
    fn what_etcd_says_is_read_whichever_way_it_says_it() {
        let refused = check(br#"{"error":"no such key","code":5,"message":"no such key"}"#, 404);
        assert!(matches!(refused, Err(Failed::Refused(text)) if text == "no such key"));
        let in_stream = br#"{"error":{"grpc_code":14,"http_code":503,"message":"no leader","http_status":"..."}}"#;
        assert!(matches!(check(in_stream, 200), Err(Failed::Unanswered(text)) if text == "no leader"));
        assert!(matches!(check(b"{\"message\":\"too many requests\"}", 429), Err(Failed::Unanswered(_))));
        assert!(matches!(check(b"{\"message\":\"etcdserver: invalid auth token\"}", 401), Err(Failed::Login(_))));
        assert!(matches!(check(b"<html>", 502), Err(Failed::Unanswered(text)) if text.contains("502")));
        assert!(check(b"{\"result\":{}}", 200).is_ok());
    }
}
