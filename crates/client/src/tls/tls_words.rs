//! Explains a failed TLS handshake with a remedy, because rustls only names its own cases (`InvalidContentType`,
//! `UnknownIssuer`).

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// Returns the reason and its remedy.
pub fn why(error: &io::Error) -> String {
    match told(error) {
        Some(Error::InvalidMessage(_)) => "the port answers, but not with TLS: try http://".into(),
        Some(Error::InvalidCertificate(why)) => certificate(why),
        Some(Error::AlertReceived(AlertDescription::CertificateRequired)) => {
            "the server requires a client certificate: set --client-cert and --client-key".into()
        }
        Some(Error::AlertReceived(alert)) => format!("the server refused it ({alert:?})"),
        Some(Error::PeerIncompatible(why)) => format!("no version or cipher in common ({why:?})"),
        _ if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the server closed the connection: is it a TLS port? else try http://".into()
        }
        _ => error.to_string(),
    }
}

/// Returns the TLS error, or `None` if the transport failed.
pub fn told(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Returns the name in a certificate without its kind: `a.example` for `DnsName("a.example")`.
fn bare(name: &str) -> &str {
    name.split_once('(').map_or(name, |(_, rest)| rest.trim_end_matches(')').trim_matches('"'))
}

fn certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::UnknownIssuer => {
            "no authority that this machine trusts signed its certificate: give the authority, or the certificate itself if it is \
             self-signed, with --ca-file"
                .into()
        }
        // An authority was recreated under its old name.
        CertificateError::BadSignature => {
            "its certificate was not signed by the authority of that name that this machine trusts: give the one that signed it with --ca-file"
                .into()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired (or this machine's clock is wrong): renew it, or measure with --insecure".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet: is this machine's clock right?".into()
        }
        CertificateError::NotValidForNameContext { expected, presented } if presented.is_empty() => format!(
            "its certificate names no host at all (no subjectAltName), so not {}: make it with -addext subjectAltName=DNS:… or IP:…",
            expected.to_str()
        ),
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "its certificate is for {}, not for {}: use a name that it carries in the URL",
            presented.iter().map(|name| bare(name)).collect::<Vec<_>>().join(", "),
            expected.to_str()
        ),
        CertificateError::NotValidForName => {
            "its certificate is for another host: use a name that it carries in the URL".into()
        }
        CertificateError::Revoked => "its certificate has been revoked".into(),
        // rustls has no name for this case, such as a certificate marked as an authority, which `openssl req -x509`
        // creates.
        CertificateError::Other(why) => format!(
            "its certificate can't be accepted ({why}): if it is self-signed, give the certificate itself with --ca-file"
        ),
        other => format!("its certificate can't be accepted: {other}"),
    }
}
