//! Certificates of our own: what a server shows its clients, and what a client shows a server that asks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SignatureScheme};

use crate::renewed::Renewed;
use crate::tls::{TlsError, add_authorities, provider};

/// A certificate with those that vouch for it, and its key: two PEM files, as certbot and cert-manager write them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The certificate, then what lies between it and its authority.
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// How two files stand: length and time of the last change of each.
type Stamp = [Option<(u64, SystemTime)>; 2];

impl Identity {
    fn stamp(&self) -> Stamp {
        [&self.cert, &self.key].map(|path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.len(), meta.modified().ok()?))
        })
    }

    fn certified(&self) -> Result<CertifiedKey, TlsError> {
        let (certs, key) = self.load()?;
        CertifiedKey::from_der(certs, key, &provider()).map_err(|e| self.refused(&e))
    }
}

/// What a client shows a server that asks; read again when its files change, because certificates of workloads live for hours.
#[derive(Debug)]
pub(crate) struct Shown(Arc<Renewed<Arc<CertifiedKey>>>);

impl Shown {
    /// Of these files.
    pub(crate) fn of(own: &Identity) -> Result<Shown, TlsError> {
        let mut read = own.stamp();
        let first = own.certified()?;
        let own = own.clone();
        Ok(Shown(Renewed::start(Arc::new(first), move |_| {
            let now = own.stamp();
            if now == read {
                return Ok(None);
            }
            // Whoever replaces both may have written one so far: then they do not match, and are looked at again.
            let certified = own.certified().map_err(|e| e.to_string())?;
            read = now;
            Ok(Some(Arc::new(certified)))
        })))
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::<CertifiedKey>::clone(&self.0.get()))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// What is in an identity's files.
pub(crate) type Loaded = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Identity {
    /// Reads both files.
    pub(crate) fn load(&self) -> Result<Loaded, TlsError> {
        let refuse = |path: &Path, why: String| TlsError::Identity { path: path.to_owned(), why };
        let read = |path: &Path| std::fs::read(path).map_err(|e| refuse(path, e.to_string()));
        let pem = read(&self.cert)?;
        let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let certs = certs.map_err(|e| refuse(&self.cert, e.to_string()))?;
        if certs.is_empty() {
            return Err(refuse(&self.cert, "no certificate in it".to_owned()));
        }
        // What a reader of keys says of a broken one may quote it: that it is none is all that is told.
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?);
        let key = key.map_err(|_| refuse(&self.key, "no private key in it".to_owned()))?;
        Ok((certs, key))
    }

    /// What was wrong with the two together.
    pub(crate) fn refused(&self, error: &rustls::Error) -> TlsError {
        TlsError::Identity { path: self.cert.clone(), why: format!("{error} ({})", self.key.display()) }
    }
}

/// What a server needs. `client_ca`: let only clients in whose certificate one of these authorities has signed. `versions`: of HTTP by their names
/// in TLS (ALPN), `h2` and `http/1.1`, the preferred first.
///
/// # Errors
/// A file can't be used, or the certificate is another key's.
pub fn server_config(
    own: &Identity,
    client_ca: Option<&Path>,
    versions: &[&str],
) -> Result<Arc<ServerConfig>, TlsError> {
    let (certs, key) = own.load()?;
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            add_authorities(&mut roots, path)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
            let wrong = |e: rustls::server::VerifierBuilderError| TlsError::Authorities {
                path: path.to_owned(),
                why: e.to_string(),
            };
            builder.with_client_cert_verifier(verifier.map_err(wrong)?)
        }
    };
    let mut config = builder.with_single_cert(certs, key).map_err(|e| own.refused(&e))?;
    config.alpn_protocols = versions.iter().map(|version| version.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}
