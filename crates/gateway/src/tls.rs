//! TLS configuration for clients, operators, proxies and replicas, from one version of the gateway's configuration.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_client::tls::certs::{Identity, server_config};
use plimsoll_client::tls::{TlsError, TlsTrust, client_config_as};
use rustls::{ClientConfig, ServerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::{GatewaySpec, ReplicaSpec};

/// TLS certificate and key of a listener.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsSpec {
    /// PEM file with the certificate and its intermediate certificates.
    pub cert: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
    /// PEM file with certificate authorities of clients; with it, only clients with a certificate are accepted
    /// [default: none].
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
}

/// Client certificate for replicas that request one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertSpec {
    /// PEM file with the certificate and its intermediate certificates.
    pub cert: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
}

/// The TLS configuration of each side; `None` means plain connections.
#[derive(Clone, Default)]
pub struct Tls {
    pub clients: Option<Arc<ServerConfig>>,
    /// Configuration for operators of a remote admin API: the certificate for clients, but a key instead of client
    /// certificates.
    pub operators: Option<Arc<ServerConfig>>,
    /// Configuration for proxies that use the picker.
    pub picker: Option<Arc<ServerConfig>>,
    /// Configuration for replicas and auxiliary servers.
    pub replicas: Option<Arc<ClientConfig>>,
}

impl Tls {
    /// Reads the files that a configuration names. Fails if a file is unusable.
    pub fn new(spec: &GatewaySpec) -> Result<Tls, TlsError> {
        let mut tls = Tls::default();
        if let Some(own) = &spec.tls {
            let identity = Identity { cert: own.cert.clone(), key: own.key.clone() };
            tls.clients = Some(server_config(&identity, own.client_ca.as_deref(), &["http/1.1"])?);
            if spec.admin.is_some_and(|admin| !admin.ip().is_loopback()) {
                tls.operators = Some(server_config(&identity, None, &["http/1.1"])?);
            }
        }
        if let Some(own) = spec.picker.as_ref().and_then(|picker| picker.tls.as_ref()) {
            let identity = Identity { cert: own.cert.clone(), key: own.key.clone() };
            tls.picker = Some(server_config(&identity, own.client_ca.as_deref(), &["h2"])?);
        }
        let semantic = spec.cache.iter().flat_map(|cache| &cache.semantic);
        let asked = semantic.flat_map(|semantic| semantic.endpoints().map(|(name, one)| one.place(name)));
        let mut places = spec.replicas.iter().map(ReplicaSpec::place).chain(asked);
        if places.any(|place| place.is_ok_and(|place| place.tls)) {
            let trust = match (&spec.ca_file, spec.insecure) {
                (_, true) => TlsTrust::Anything,
                (Some(file), false) => TlsTrust::SystemAnd(file.clone()),
                (None, false) => TlsTrust::System,
            };
            let own = spec.client_cert.clone().map(|own| Identity { cert: own.cert, key: own.key });
            tls.replicas = Some(client_config_as(&trust, own.as_ref(), false)?);
        }
        Ok(tls)
    }
}
