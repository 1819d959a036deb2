//! TLS by rustls with the ring provider, over the stamped stream.
//!
//! aws-lc-rs lost: twice the build for no gain a load generator would see. The provider is named here and nowhere else.
//! Trust is the machine's own store plus the file a user names; skipping verification is a setting of its own name and
//! never a fallback.

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

use crate::certs::{Identity, Shown};

/// How a server's certificate is judged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum TlsTrust {
    /// By the machine's own store.
    #[default]
    System,
    /// By the machine's store and the certificates in this PEM file.
    SystemAnd(PathBuf),
    /// Not at all: any certificate passes.
    Anything,
}

/// TLS that could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of extra authorities could not be read, or holds no certificate.
    #[error("cannot use {path} as a file of certificate authorities: {why}")]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A certificate of our own, or its key, can't be used.
    #[error("cannot use {path} as a certificate and its key: {why}")]
    Identity {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// rustls refused the configuration.
    #[error("cannot set TLS up: {0}")]
    Config(#[from] rustls::Error),
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The configuration that all connections share.
pub fn client_config(trust: &TlsTrust) -> Result<Arc<ClientConfig>, TlsError> {
    client_config_as(trust, None, false)
}

/// One configuration for each trust and own certificate, of targets that are made together: each holds all authorities, and ten thousand pages need them
/// once.
#[derive(Default, Debug)]
pub struct SharedTls(Mutex<Vec<KnownConfig>>);

/// What a configuration was made of, and it.
type KnownConfig = (TlsTrust, Option<Identity>, bool, Arc<ClientConfig>);

impl SharedTls {
    /// That of this trust and of this certificate, where a client has one of its own, for HTTP/1.1 or HTTP/2.
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

/// The same for a client that shows a certificate of its own where a server asks for one, and offers one version of HTTP. Both at once would let the
/// server choose what is measured.
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
        Some(own) => builder.with_client_cert_resolver(Arc::new(Shown::of(own)?)),
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

/// What the machine trusts. A store with unreadable entries gives the rest; an empty one makes handshakes fail by name.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

/// Adds what the file names; gives its certificates back.
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

/// What a server's certificate is judged by where the machine's own judgement is not all. Signatures are checked in any case, so that the handshake is a
/// real one.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    trust: Leniency,
}

#[derive(Debug)]
enum Leniency {
    Anything,
    /// The usual judgement, and a server that shows the very certificate which the user's file names. `openssl req -x509` marks what it makes as an
    /// authority, which webpki takes as no server's; curl and OpenSSL trust a certificate that is itself the anchor, and so does this. Dates and names are
    /// held to all the same.
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
        // webpki looks at the dates before it asks what a certificate may be used as: this is what is left to object to.
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
