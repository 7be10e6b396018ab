//! Requests to etcd, as JSON over HTTP: each with a deadline, to the endpoints in turn until one answers.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
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

    /// A request. What etcd refuses is an error, as what does not come in time.
    pub(super) fn post(&self, path: &str, body: &Value, within: Duration) -> Result<Value, String> {
        self.try_all(|endpoint, token| {
            let mut response = self.send(endpoint, token, path, body, |config| config.timeout_global(Some(within)))?;
            let read = response.body_mut().with_config().limit(LONGEST).read_to_vec();
            let bytes = read.map_err(|error| Failed::Endpoint(error.to_string()))?;
            let value: Value = serde_json::from_slice(&bytes).map_err(|error| Failed::Answer(error.to_string()))?;
            check(value, response.status().as_u16())
        })
    }

    /// A watch: its lines until it ends, which it does after [`WATCH`], too. `handle` returns whether it goes on.
    pub(super) fn watch(&self, body: &Value, mut handle: impl FnMut(Value) -> bool) -> Result<(), String> {
        self.try_all(|endpoint, token| {
            let times = |config: Config| {
                let config = config.timeout_connect(Some(Duration::from_secs(2)));
                config.timeout_recv_response(Some(Duration::from_secs(3))).timeout_recv_body(Some(WATCH))
            };
            let response = self.send(endpoint, token, "/v3/watch", body, times)?;
            let mut lines = BufReader::new(response.into_body().into_reader());
            loop {
                let mut line = Vec::new();
                match lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
                    Ok(1..) => {}
                    // Its time is over, or etcd has ended it.
                    Ok(0) | Err(_) => return Ok(()),
                }
                let value: Value = serde_json::from_slice(&line).map_err(|error| Failed::Answer(error.to_string()))?;
                if !handle(value) {
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
        sent.map_err(|error| Failed::Endpoint(error.to_string()))
    }

    /// Tries the endpoints, beginning with the one that answered last; logs in where that is asked for.
    fn try_all<R>(&self, mut one: impl FnMut(&str, Option<&str>) -> Result<R, Failed>) -> Result<R, String> {
        let endpoints = &self.settings.endpoints;
        let mut why = "no endpoint is given".to_owned();
        let mut logged_in = false;
        let mut left = endpoints.len() + 1;
        while left > 0 {
            left -= 1;
            let (at, token) = self.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let Some(endpoint) = endpoints.get(at % endpoints.len().max(1)) else { break };
            let token = match (&self.settings.user, token) {
                (Some(_), None) => match self.log_in(endpoint) {
                    Ok(token) => Some(token),
                    Err(Failed::Endpoint(error)) => {
                        why = format!("{endpoint}: {error}");
                        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = at + 1;
                        continue;
                    }
                    Err(Failed::Answer(error) | Failed::Login(error)) => return Err(format!("{endpoint}: {error}")),
                },
                (_, token) => token,
            };
            match one(endpoint, token.as_deref()) {
                Ok(result) => return Ok(result),
                Err(Failed::Login(error)) if !logged_in && self.settings.user.is_some() => {
                    // The token is out of date.
                    logged_in = true;
                    left += 1;
                    why = error;
                    self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = None;
                }
                Err(Failed::Answer(error) | Failed::Login(error)) => return Err(format!("{endpoint}: {error}")),
                Err(Failed::Endpoint(error)) => {
                    why = format!("{endpoint}: {error}");
                    self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = at + 1;
                }
            }
        }
        Err(why)
    }

    fn log_in(&self, endpoint: &str) -> Result<String, Failed> {
        let password = match &self.settings.password_file {
            Some(file) => {
                let read = std::fs::read_to_string(file);
                read.map_err(|error| Failed::Answer(format!("{}: {error}", file.display())))?.trim_end().to_owned()
            }
            None => String::new(),
        };
        let body = json!({"name": self.settings.user, "password": password});
        let within = |config: Config| config.timeout_global(Some(Duration::from_secs(3)));
        let mut response = self.send(endpoint, None, "/v3/auth/authenticate", &body, within)?;
        let bytes = response.body_mut().read_to_vec().map_err(|error| Failed::Endpoint(error.to_string()))?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| Failed::Answer(error.to_string()))?;
        let value = check(value, response.status().as_u16())?;
        let token = value["token"].as_str().ok_or_else(|| Failed::Answer("it gave no token".to_owned()))?.to_owned();
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(token.clone());
        Ok(token)
    }
}

type Config = ureq::config::ConfigBuilder<ureq::typestate::RequestScope<ureq::typestate::WithBody>>;

/// Why a request failed.
enum Failed {
    /// The endpoint does not answer: another one may.
    Endpoint(String),
    /// It wants a login, or another one.
    Login(String),
    /// etcd refuses.
    Answer(String),
}

fn check(value: Value, status: u16) -> Result<Value, Failed> {
    let message = value["message"].as_str().or(value["error"].as_str()).unwrap_or("no word of why").to_owned();
    match status {
        200 => Ok(value),
        401 => Err(Failed::Login(message)),
        // It has no leader now, or ends.
        503 => Err(Failed::Endpoint(message)),
        _ if message.contains("invalid auth token") => Err(Failed::Login(message)),
        _ => Err(Failed::Answer(message)),
    }
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
