//! Configures TLS by rustls with the ring provider, over the stamped stream.
//!
//! aws-lc-rs was rejected: it doubles the build without a gain that a load generator would see. Only this file names the
//! provider. Trust consists of the machine's store and a file that the user names. Skipping verification is a separate
//! setting and never a fallback.

pub mod certs;
pub(crate) mod tls_words;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WantsClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme,
    WantsVerifier,
};

use crate::tls::certs::{ClientCertificate, Identity};

/// The policy for verifying a server's certificate.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum TlsTrust {
    /// Verifies certificates with the trust store of the machine.
    #[default]
    System,
    /// Verify against the machine's store and the certificates in this PEM file.
    SystemAnd(PathBuf),
    /// Accepts any certificate, so the server is not authenticated.
    Anything,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of extra authorities can't be read or contains no certificate.
    #[error("cannot use {path} as a file of certificate authorities: {why}")]
    Authorities {
        path: PathBuf,
        /// Reason of the failure as text for users.
        why: String,
    },
    /// The client's own certificate or its key can't be used.
    #[error("cannot use {path} as a certificate and its key: {why}")]
    Identity {
        path: PathBuf,
        /// Reason of the failure as text for users.
        why: String,
    },
    #[error("cannot set TLS up: {0}")]
    Config(#[from] rustls::Error),
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Returns the TLS configuration that all connections share.
pub fn client_config(trust: &TlsTrust) -> Result<Arc<ClientConfig>, TlsError> {
    client_config_as(trust, None, false)
}

/// A cache of TLS configurations by trust and client certificate. Each contains all authorities, and ten thousand endpoints
/// should share them.
#[derive(Default, Debug)]
pub struct SharedTls(Mutex<Vec<KnownConfig>>);

/// The inputs of a configuration, and the configuration.
type KnownConfig = (TlsTrust, Option<Identity>, bool, Arc<ClientConfig>);

impl SharedTls {
    /// Returns the configuration for this trust and client certificate, for HTTP/1.1 or HTTP/2.
    pub fn config(
        &self,
        trust: &TlsTrust,
        own: Option<&Identity>,
        http2: bool,
    ) -> Result<Arc<ClientConfig>, TlsError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((.., config)) =
            known.iter().find(|one| (&one.0, one.1.as_ref(), one.2) == (trust, own, http2))
        {
            return Ok(Arc::clone(config));
        }
        let config = client_config_as(trust, own, http2)?;
        known.push((trust.clone(), own.cloned(), http2, Arc::clone(&config)));
        Ok(config)
    }
}

/// Returns the configuration of a client that presents its own certificate on request and offers one version of HTTP.
/// Offering both would let the server choose the measured protocol.
pub fn client_config_as(
    trust: &TlsTrust,
    own: Option<&Identity>,
    http2: bool,
) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match trust {
        TlsTrust::Anything => lenient(builder, Leniency::Anything),
        TlsTrust::System => builder.with_root_certificates(system_roots()),
        TlsTrust::SystemAnd(path) => {
            let mut roots = system_roots();
            let named = add_authorities(&mut roots, path)?;
            let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
            let usual =
                usual.map_err(|e| TlsError::Authorities { path: path.to_owned(), why: e.to_string() })?;
            lenient(builder, Leniency::Named(usual, named))
        }
    };
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => builder.with_client_cert_resolver(Arc::new(ClientCertificate::of(own)?)),
    };
    config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    Ok(Arc::new(config))
}

fn lenient(
    builder: ConfigBuilder<ClientConfig, WantsVerifier>,
    trust: Leniency,
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let verifier = Lenient { provider: provider(), trust };
    builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
}

/// Returns the machine's trusted roots. Unreadable entries are skipped; an empty store makes handshakes fail with a clear
/// error.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Adds the certificates of the file and returns them.
pub(crate) fn add_authorities(
    roots: &mut RootCertStore,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let refuse = |why: String| TlsError::Authorities { path: path.to_owned(), why };
    let pem = std::fs::read(path).map_err(|e| refuse(e.to_string()))?;
    let mut named = Vec::new();
    for cert in CertificateDer::pem_slice_iter(&pem) {
        let cert = cert.map_err(|e| refuse(e.to_string()))?;
        roots.add(cert.clone()).map_err(|e| refuse(e.to_string()))?;
        named.push(cert);
    }
    if named.is_empty() { Err(refuse("no certificate in it".to_owned())) } else { Ok(named) }
}

/// A verifier that accepts certificates beyond the standard verification. Signatures are always checked, so that the
/// handshake is a real one.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    trust: Leniency,
}

#[derive(Debug)]
enum Leniency {
    Anything,
    /// Standard verification, plus a server that presents exactly a certificate of the user's file.
    Named(Arc<WebPkiServerVerifier>, Vec<CertificateDer<'static>>),
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Leniency::Named(usual, certs) = &self.trust else { return Ok(ServerCertVerified::assertion()) };
        let usual = usual.verify_server_cert(end_entity, intermediates, name, ocsp, now);
        // webpki checks dates before the permitted usage, so usage is the only remaining objection.
        let only_its_kind =
            matches!(&usual, Err(rustls::Error::InvalidCertificate(CertificateError::Other(_))));
        if only_its_kind && certs.iter().any(|cert| cert.as_ref() == end_entity.as_ref()) {
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
            return Ok(ServerCertVerified::assertion());
        }
        usual
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
