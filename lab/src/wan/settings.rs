//! What a WAN link does to packets, and how that is written: in files, in `lab set`, in `lab status`.

use std::time::Duration;

use super::quantity::{self, BadQuantity, Queue};

/// The settings of a link; both directions have the same, each with a line and a queue of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Bits a second; `None`: no packet waits for another.
    pub rate: Option<u64>,
    /// From the end of sending to receiving, one way.
    pub delay: Duration,
    /// How far the delay strays, up and down.
    pub jitter: Duration,
    /// Millionths of the packets that are lost on the line.
    pub loss: u32,
    /// The size of the queue for the line; further packets are dropped.
    pub queue: Queue,
    /// The longest packet.
    pub mtu: u32,
    /// Longer packets vanish without a word to their sender (a hole), instead of being refused by the router.
    pub hole: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rate: None,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0,
            queue: Queue::Time(Duration::from_millis(100)),
            mtu: 1500,
            hole: false,
        }
    }
}

/// Why a setting was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSetting {
    /// No setting has this name.
    #[error("there is no setting `{0}`; there are {list}", list = KEYS.join(", "))]
    Unknown(String),
    /// It is no `KEY=VALUE`.
    #[error("`{0}` is no setting: write KEY=VALUE such as loss=5%")]
    Shape(String),
    /// The value does not read.
    #[error(transparent)]
    Quantity(#[from] BadQuantity),
    /// The value is out of bounds.
    #[error("`{0}` is no MTU: write bytes from 1280 (576 with hole=true) to 9000")]
    Mtu(String),
    /// Neither true nor false.
    #[error("`{0}`: write true or false")]
    Bool(String),
    /// The jitter is longer than the delay.
    #[error("jitter is longer than delay: nothing arrives before it was sent")]
    Jitter,
}

/// The names of the settings.
pub const KEYS: &[&str] = &["rate", "delay", "jitter", "loss", "queue", "mtu", "hole"];

impl Settings {
    /// Changes the setting `key` to `value`.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), BadSetting> {
        match key {
            "rate" => self.rate = quantity::rate(value)?,
            "delay" => self.delay = quantity::time(value)?,
            "jitter" => self.jitter = quantity::time(value)?,
            "loss" => self.loss = quantity::share(value)?,
            "queue" => self.queue = quantity::queue(value)?,
            "mtu" => {
                let mtu = value.parse().ok().filter(|mtu| (576..=9000).contains(mtu));
                self.mtu = mtu.ok_or_else(|| BadSetting::Mtu(value.to_owned()))?;
            }
            "hole" => self.hole = value.parse().map_err(|_| BadSetting::Bool(value.to_owned()))?,
            _ => return Err(BadSetting::Unknown(key.to_owned())),
        }
        Ok(())
    }

    /// Makes all `assignments` (`KEY=VALUE`), or none.
    pub fn apply<'a>(&mut self, assignments: impl IntoIterator<Item = &'a str>) -> Result<(), BadSetting> {
        let mut changed = *self;
        for text in assignments {
            let (key, value) = text.split_once('=').ok_or_else(|| BadSetting::Shape(text.to_owned()))?;
            changed.set(key.trim(), value.trim())?;
        }
        *self = changed.check()?;
        Ok(())
    }

    /// Whether the settings go together.
    pub fn check(self) -> Result<Self, BadSetting> {
        if self.jitter > self.delay {
            return Err(BadSetting::Jitter);
        }
        // Below 1280 the kernel would take IPv6 off the device.
        if self.mtu < 1280 && !self.hole { Err(BadSetting::Mtu(self.mtu.to_string())) } else { Ok(self) }
    }

    /// All settings as `KEY=VALUE`, as [`Settings::apply`] reads them.
    pub fn texts(&self) -> Vec<String> {
        KEYS.iter().map(|key| format!("{key}={}", self.text(key))).collect()
    }

    fn text(&self, key: &str) -> String {
        match key {
            "rate" => quantity::rate_text(self.rate),
            "delay" => quantity::time_text(self.delay),
            "jitter" => quantity::time_text(self.jitter),
            "loss" => quantity::share_text(self.loss),
            "queue" => quantity::queue_text(self.queue),
            "mtu" => self.mtu.to_string(),
            _ => self.hole.to_string(),
        }
    }

    /// How many bytes may wait; never less than two of the longest packets.
    pub(super) fn queue_bytes(&self) -> u64 {
        let bytes = match (self.queue, self.rate) {
            (Queue::Bytes(bytes), _) => bytes,
            (Queue::Time(time), Some(rate)) => (u128::from(rate) * time.as_nanos() / 8_000_000_000) as u64,
            (Queue::Time(_), None) => u64::MAX,
        };
        bytes.max(2 * u64::from(self.mtu))
    }

    /// How long the line takes for so many bytes, in nanoseconds.
    pub(super) fn line_time(&self, bytes: u64) -> u64 {
        self.rate.map_or(0, |rate| (bytes * 8_000_000_000).div_ceil(rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_read_back_as_they_are_shown() {
        let mut settings = Settings::default();
        settings
            .apply(["rate=100M", "delay=20ms", "jitter=2ms", "loss=0.1%", "queue=64kB", "mtu=1400", "hole=true"])
            .unwrap();
        let mut again = Settings::default();
        again.apply(settings.texts().iter().map(String::as_str)).unwrap();
        assert_eq!(settings, again);
        assert_eq!(
            settings.texts().join(" "),
            "rate=100M delay=20ms jitter=2ms loss=0.1% queue=64000B mtu=1400 hole=true"
        );
    }

    #[test]
    fn all_or_nothing_is_changed() {
        let mut settings = Settings::default();
        assert_eq!(settings.apply(["rate=1M", "los=5%"]), Err(BadSetting::Unknown("los".into())));
        assert_eq!(settings.apply(["rate=1M", "jitter=5ms"]), Err(BadSetting::Jitter));
        assert!(matches!(settings.apply(["mtu=100"]), Err(BadSetting::Mtu(_))));
        assert!(matches!(settings.apply(["loss"]), Err(BadSetting::Shape(_))));
        assert_eq!(settings, Settings::default());
    }
}
