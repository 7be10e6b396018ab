//! The content of a certificate, parsed from untrusted bytes. Whether it is true is not checked here.

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::moment::Moment;
use crate::name::{Role, Subject};
use crate::refusal::Refusal;

/// The longest chain: a host, the login that signed it, the identity that signed that.
pub(crate) const LONGEST: usize = 3;

/// A serial number, without leading zeros.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Serial(pub(crate) Vec<u8>);

impl Serial {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let zeros = bytes.iter().take_while(|&&b| b == 0).count();
        Self(bytes.iter().skip(zeros).copied().collect())
    }

    /// Reads hexadecimal digits, with or without colons.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let digits: Vec<u32> = text.chars().filter(|&c| c != ':').map(|c| c.to_digit(16)).collect::<Option<_>>()?;
        if digits.is_empty() || !digits.len().is_multiple_of(2) || digits.len() > 40 {
            return None;
        }
        let byte = |pair: &[u32]| pair.iter().fold(0, |sum, digit| sum * 16 + digit).try_into().ok();
        digits.chunks(2).map(byte).collect::<Option<Vec<u8>>>().map(|bytes| Self::new(&bytes))
    }
}

impl core::fmt::Display for Serial {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The content of one certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    pub(crate) subject: Subject,
    pub(crate) serial: Serial,
    pub(crate) from: Moment,
    pub(crate) to: Moment,
}

impl Facts {
    pub(crate) fn read(der: &CertificateDer<'_>) -> Result<Self, Refusal> {
        let wrong = |why: &str| Refusal::Malformed { why: why.to_owned() };
        let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| wrong("it cannot be read"))?;
        if !rest.is_empty() {
            return Err(wrong("something follows it"));
        }
        let names = certificate.subject_alternative_name().map_err(|_| wrong("its names cannot be read"))?;
        let names = names.ok_or_else(|| wrong("it names nobody"))?;
        let [GeneralName::URI(uri)] = names.value.general_names.as_slice() else {
            return Err(wrong("it does not have exactly one name"));
        };
        let subject =
            Subject::parse(uri).ok_or_else(|| wrong("its name is not of the form madrigal://GRID/KIND/NAME"))?;
        let validity = certificate.validity();
        Ok(Self {
            subject,
            serial: Serial::new(certificate.raw_serial()),
            from: Moment(validity.not_before.timestamp()),
            to: Moment(validity.not_after.timestamp()),
        })
    }

    fn judge(&self, now: Moment) -> Result<(), Refusal> {
        let who = self.subject.spoken();
        if now > self.to {
            return Err(Refusal::Expired { who, at: self.to, now });
        }
        if now < self.from {
            return Err(Refusal::NotYetValid { who, from: self.from, now });
        }
        Ok(())
    }
}

/// The content of the certificates of a chain, the peer's own first.
pub(crate) struct Chain {
    pub(crate) leaf: Facts,
    above: Vec<Facts>,
}

impl Chain {
    pub(crate) fn read(leaf: &CertificateDer<'_>, above: &[CertificateDer<'_>]) -> Result<Self, Refusal> {
        if above.len() >= LONGEST {
            return Err(Refusal::Malformed { why: format!("a chain of {} certificates", above.len() + 1) });
        }
        Ok(Self { leaf: Facts::read(leaf)?, above: above.iter().map(Facts::read).collect::<Result<_, _>>()? })
    }

    pub(crate) fn each(&self) -> impl DoubleEndedIterator<Item = &Facts> {
        core::iter::once(&self.leaf).chain(&self.above)
    }

    /// Whether all are of one grid.
    pub(crate) fn judge_grid(&self, ours: &crate::name::Name) -> Result<(), Refusal> {
        let foreign = self.each().find(|facts| &facts.subject.grid != ours);
        foreign.map_or(Ok(()), |facts| Err(Refusal::WrongGrid { who: facts.subject.spoken(), ours: ours.to_string() }))
    }

    /// Whether all are valid now; if not, returns the reason for the one nearest to the peer.
    pub(crate) fn judge_time(&self, now: Moment) -> Result<(), Refusal> {
        self.each().try_for_each(|facts| facts.judge(now))
    }

    /// Whether each may sign the next, and the last is one that connects.
    pub(crate) fn judge_roles(&self) -> Result<(), Refusal> {
        let no = |facts: &Facts, why| Err(Refusal::NotAllowed { who: facts.subject.spoken(), why });
        let mut signer = &Role::Authority;
        for facts in self.each().rev() {
            if !signer.may_sign(&facts.subject.role) {
                return no(facts, "is signed by one that may not sign it");
            }
            signer = &facts.subject.role;
        }
        match self.leaf.subject.role {
            Role::Host(_) | Role::User(_) => Ok(()),
            _ => no(&self.leaf, "signs others and connects to nobody"),
        }
    }

    /// The last second in which the whole chain is valid.
    pub(crate) fn ends(&self) -> Moment {
        self.each().map(|facts| facts.to).min().unwrap_or(self.leaf.to)
    }

    /// The user whose login signed the peer's own certificate.
    pub(crate) fn user(&self) -> Option<&crate::name::Name> {
        match &self.above.first()?.subject.role {
            Role::Login(user) => Some(user),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn serials_read_as_they_print() {
        assert_eq!(Serial::new(&[0, 0, 18, 52]).to_string(), "1234");
        assert_eq!(Serial::parse("12:34"), Some(Serial::new(&[18, 52])));
        for bad in ["", "123", "xy", "12 34", &"00".repeat(21)] {
            assert_eq!(Serial::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn noise_is_no_certificate(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let der = CertificateDer::from(bytes);
            let refusal = Facts::read(&der).map_err(|refusal| refusal.name());
            prop_assert_eq!(refusal, Err("malformed"));
        }
    }
}
