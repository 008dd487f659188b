//! The expiry of certificates.

use std::time::Duration;

use tokio_rustls::rustls::{
    self, CertificateError, RootCertStore,
    client::verify_server_cert_signed_by_trust_anchor,
    crypto::ring,
    pki_types::{CertificateDer, UnixTime},
    server::ParsedCertificate,
};

const DAY_S: u64 = 24 * 60 * 60;
/// Number of days before a certificate's expiry from which on users are warned.
const WARNING_DAYS: u64 = 14;

/// A warning about a certificate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ExpiryWarning {
    pub(crate) has_expired: bool,
    pub(crate) text: String,
}

/// Returns when a certificate expires, in seconds since 1970; `None` if it cannot be parsed.
///
/// The TLS library does not return the end of the validity, but its error names it: at the end of time every certificate has
/// expired.
pub(crate) fn expiry(certificate: &CertificateDer<'_>) -> Option<u64> {
    let certificate = ParsedCertificate::try_from(certificate).ok()?;
    let end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    match verify_server_cert_signed_by_trust_anchor(&certificate, &RootCertStore::empty(), &[], end_of_time, algorithms)
    {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
            Some(not_after.as_secs())
        }
        _ => None,
    }
}

/// Returns the warning about a hub's certificate that expires at this time, if one is due. Times are in seconds since 1970.
pub(crate) fn expiry_warning(expires: u64, now: u64) -> Option<ExpiryWarning> {
    let days = |seconds: u64| match seconds / DAY_S {
        0 => "less than a day".to_owned(),
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    };
    if now > expires {
        let text = format!(
            "the hub's certificate expired {} ago, and peers that do not name its fingerprint refuse it: renew it and \
             restart the hub",
            days(now - expires)
        );
        return Some(ExpiryWarning { has_expired: true, text });
    }
    let left = expires - now;
    let text = format!("the hub's certificate expires in {}: renew it and restart the hub", days(left));
    (left <= WARNING_DAYS * DAY_S).then_some(ExpiryWarning { has_expired: false, text })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn expiry_of_a_certificate_is_the_end_of_its_validity() {
        let mut params = CertificateParams::new(vec!["hub.example".into()]).unwrap();
        for (year, seconds) in [(2001, 978_307_200), (2100, 4_102_444_800)] {
            params.not_after = date_time_ymd(year, 1, 1);
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            assert_eq!(expiry(certificate.der()), Some(seconds));
        }
        assert_eq!(expiry(&CertificateDer::from_slice(b"nothing")), None);
    }

    #[test]
    fn certificate_is_warned_about_in_its_last_fourteen_days_and_afterwards() {
        let expires = 100 * DAY_S;
        let warning = |now: u64| expiry_warning(expires, now).map(|warning| (warning.has_expired, warning.text));
        assert_eq!(warning(expires - WARNING_DAYS * DAY_S - 1), None);
        for (now, has_expired, when) in [
            (expires - WARNING_DAYS * DAY_S, false, "expires in 14 days:"),
            (expires - DAY_S, false, "expires in 1 day:"),
            (expires, false, "expires in less than a day:"),
            (expires + 1, true, "expired less than a day ago,"),
            (expires + 3 * DAY_S, true, "expired 3 days ago,"),
        ] {
            let (is_over, text) = warning(now).expect("a warning");
            assert!(is_over == has_expired && text.contains(when), "{now}: {text}");
        }
    }
}
