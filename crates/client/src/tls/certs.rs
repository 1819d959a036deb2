//! Loads the certificates that a server presents to clients and a client presents on request (mutual TLS).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::ResolvesClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SignatureScheme};

use crate::auth::renewed::RefreshedValue;
use crate::tls::{TlsError, add_authorities, provider};

/// A certificate chain and its private key, as two PEM files in the layout of certbot and cert-manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// PEM file with the certificate, then its intermediates.
    pub cert: PathBuf,
    pub key: PathBuf,
}

/// Length and modification time of both files, to detect a change.
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

/// The client certificate of mutual TLS. It is reloaded when its files change, because workload certificates live for
/// hours.
#[derive(Debug)]
pub(crate) struct ClientCertificate(Arc<RefreshedValue<Arc<CertifiedKey>>>);

impl ClientCertificate {
    /// Loads the certificate from these files.
    pub(crate) fn of(own: &Identity) -> Result<ClientCertificate, TlsError> {
        let mut read = own.stamp();
        let first = own.certified()?;
        let own = own.clone();
        Ok(ClientCertificate(RefreshedValue::start(Arc::new(first), move |_| {
            let now = own.stamp();
            if now == read {
                return Ok(None);
            }
            // One file may be replaced before the other. The two don't match then and are checked again later.
            let certified = own.certified().map_err(|e| e.to_string())?;
            read = now;
            Ok(Some(Arc::new(certified)))
        })))
    }
}

impl ResolvesClientCert for ClientCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::<CertifiedKey>::clone(&self.0.get()))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The parsed content of both files.
pub(crate) type IdentityFiles = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Identity {
    pub(crate) fn load(&self) -> Result<IdentityFiles, TlsError> {
        let refuse = |path: &Path, why: String| TlsError::Identity { path: path.to_owned(), why };
        let read = |path: &Path| std::fs::read(path).map_err(|e| refuse(path, e.to_string()));
        let pem = read(&self.cert)?;
        let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let certs = certs.map_err(|e| refuse(&self.cert, e.to_string()))?;
        if certs.is_empty() {
            return Err(refuse(&self.cert, "no certificate in it".to_owned()));
        }
        // The parser's message may quote the key, so the error only states that the key is invalid.
        let key = PrivateKeyDer::from_pem_slice(&read(&self.key)?);
        let key = key.map_err(|_| refuse(&self.key, "no private key in it".to_owned()))?;
        Ok((certs, key))
    }

    /// Returns the error for a certificate and a key that don't work together.
    pub(crate) fn refused(&self, error: &rustls::Error) -> TlsError {
        TlsError::Identity { path: self.cert.clone(), why: format!("{error} ({})", self.key.display()) }
    }
}

/// Returns the TLS configuration of a server.
///
/// With `client_ca`, only clients with a certificate that one of these authorities signed are admitted. `versions` lists
/// the HTTP versions by ALPN name (`h2`, `http/1.1`) in order of preference.
///
/// # Errors
/// Fails if a file can't be used or the certificate belongs to another key.
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
