//! TLS towards clients, operators and replicas, as one reading of the file has it.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_client::certs::{Identity, server_config};
use plimsoll_client::tls::{TlsError, TlsTrust, client_config_as};
use rustls::{ClientConfig, ServerConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::{GatewaySpec, ReplicaSpec};

/// TLS towards clients.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsSpec {
    /// PEM file of the certificate, and of those between it and its authority.
    pub cert: PathBuf,
    /// PEM file of its private key.
    pub key: PathBuf,
    /// PEM file of authorities: only clients with a certificate of theirs are let in.
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
}

/// What the gateway shows replicas that ask for a certificate.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertSpec {
    /// PEM file of the certificate, and of those between it and its authority.
    pub cert: PathBuf,
    /// PEM file of its private key.
    pub key: PathBuf,
}

/// See the module; none of one = no TLS there.
#[derive(Clone, Default)]
pub struct Tls {
    pub clients: Option<Arc<ServerConfig>>,
    /// Towards operators: the same certificate, where they come from outside; they show a key and no certificate.
    pub operators: Option<Arc<ServerConfig>>,
    /// Towards proxies that ask the picker.
    pub picker: Option<Arc<ServerConfig>>,
    /// Towards replicas, and servers that are asked on the side.
    pub replicas: Option<Arc<ClientConfig>>,
}

impl Tls {
    /// Reads the files that a spec names.
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
