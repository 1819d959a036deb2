//! Tests TLS: equal stamps below it, and three ways to verify a certificate.

use std::path::Path;
use std::sync::Arc;

use plimsoll_client::Control;
use plimsoll_client::tls::certs::{Identity, server_config};
use plimsoll_model::{By, How, Span};
use plimsoll_workload::Connections;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::rig::{Rig, run_on};
use crate::server::{Seen, Server, Step, good, write};

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name).display().to_string()
}

fn server() -> Server {
    server_that(|_| vec![good()])
}

/// Returns a TLS server with this script.
pub fn server_that(script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Server {
    server_with("server", script)
}

/// Returns a TLS server with this certificate and script.
fn server_with(name: &str, script: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> Server {
    let certs = CertificateDer::pem_file_iter(fixture(&format!("{name}.pem"))).unwrap();
    let certs = certs.collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(fixture(&format!("{name}.key"))).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .unwrap();
    Server::start(script, Some(Arc::new(config)))
}

fn rig_without_authority(server: &Server) -> Rig {
    Rig::at(format!("https://localhost:{}/v1", server.addr.port()))
}

/// Returns a rig that trusts the server's authority.
pub fn rig(server: &Server) -> Rig {
    let mut rig = rig_without_authority(server);
    rig.target.ca_file = Some(fixture("ca.pem"));
    rig
}

#[test]
fn an_authority_the_user_names_is_trusted_and_stamps_stay_the_kernels() {
    let server = server();
    let row = rig(&server).one();
    assert!(row.outcome.is_finished(), "{row:#?}");
    assert_eq!(row.kernel_stamps, plimsoll_client::http1::tcp::kernel_stamps_available());
    assert_eq!(row.answer.tokens.output, Some(3));
    let stamps =
        [row.connected, row.sent, row.first_byte, row.first_token, row.end].map(|at| at.expect("reached"));
    assert!(stamps.is_sorted(), "{stamps:?}");
}

#[test]
fn a_connection_is_kept_though_the_server_sends_tickets_after_its_handshake() {
    let server = server();
    let rig = rig(&server);
    let client = rig.start();
    for reused in [false, true] {
        let (_, rows) = run_on(&client, &rig.plan(&[Span::ZERO]), &Control::default());
        assert!(rows[0].outcome.is_finished() && rows[0].reused == reused, "{:#?}", rows[0]);
    }
    assert_eq!(server.accepted(), 1);
}

#[test]
fn an_unknown_authority_is_refused_by_name_unless_told_to_accept_anything() {
    let server = server();
    let row = rig_without_authority(&server).one();
    assert_eq!((row.outcome.how, row.outcome.by), (How::Refused, By::Network), "{row:#?}");
    assert!(
        row.answer.error.as_deref().is_some_and(|e| e.contains("certificate") && e.contains("--ca-file")),
        "{row:#?}"
    );
    let mut rig = rig_without_authority(&server);
    rig.target.tls_verify = false;
    assert!(rig.one().outcome.is_finished());
}

/// curl --cacert accepts the certificate; webpki itself returns CaUsedAsEndEntity.
#[test]
fn a_self_signed_certificate_that_the_user_names_is_trusted_and_its_name_still_counts() {
    let server = server_with("self", |_| vec![good()]);
    let mut rig = rig_without_authority(&server);
    let error = rig.one().answer.error.expect("refused");
    assert!(error.contains("self-signed") && error.contains("--ca-file"), "{error}");
    rig.target.ca_file = Some(fixture("self.pem"));
    let row = rig.one();
    assert!(row.outcome.is_finished(), "{row:#?}");
    rig.target.url = rig.target.url.replace("localhost", "ip6-localhost");
    let error = rig.one().answer.error.expect("refused");
    assert!(!error.contains("its certificate") || error.contains("not for ip6-localhost"), "{error}");
    rig.target.ca_file = Some(fixture("ca.pem"));
    rig.target.url = rig.target.url.replace("ip6-localhost", "localhost");
    assert!(!rig.one().outcome.is_finished(), "another file names another certificate");
}

#[test]
fn a_certificate_of_another_host_is_told_by_its_names() {
    let server = server();
    let mut rig = rig(&server);
    rig.target.url = format!("https://127.0.0.2:{}/v1", server.addr.port());
    let error = rig.one().answer.error.expect("refused");
    assert!(error.contains("not for 127.0.0.2") || error.contains("cannot connect"), "{error}");
}

#[test]
fn a_server_that_speaks_no_tls() {
    let plain = Server::plain(|_| vec![write("HTTP/1.1 400 Bad Request\r\n\r\n"), Step::Close]);
    let mut rig = Rig::at(format!("https://{}/v1", plain.addr));
    rig.client.timeouts.connect = crate::rig::ms(500);
    let row = rig.one();
    assert!(matches!(row.outcome.how, How::Refused | How::Timeout), "{row:#?}");
    assert!(row.sent.is_none());
}

#[test]
fn a_plain_port_that_answers_is_said_to_be_plain() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let _ = socket.read(&mut [0; 512]);
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let row = Rig::at(format!("https://{addr}/v1")).one();
    assert!(row.answer.error.as_deref().is_some_and(|e| e.contains("try http://")), "{row:#?}");
}

#[test]
fn a_file_that_is_no_certificate_is_told() {
    let mut rig = Rig::at("https://localhost/v1");
    rig.target.ca_file = Some(fixture("README.md"));
    let target = plimsoll_client::Target::new(&rig.target, None);
    assert!(target.expect_err("refused").to_string().contains("README.md"));
}

/// A server that requires a client certificate gets the target's. After a change of the files, new connections use the new
/// one.
#[test]
fn a_certificate_of_ones_own_is_shown_and_read_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        std::fs::write(path(name), params.self_signed(&key).unwrap().pem()).unwrap();
        Issuer::new(params, key)
    };
    let sign = |issuer: &Issuer<'_, KeyPair>| {
        let mut params = CertificateParams::new(vec!["client".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        std::fs::write(path("own.pem"), params.signed_by(&key, issuer).unwrap().pem()).unwrap();
        std::fs::write(path("own.key"), key.serialize_pem()).unwrap();
    };
    let (known, stranger) = (authority("known.pem"), authority("stranger.pem"));
    let identity = Identity { cert: fixture("server.pem").into(), key: fixture("server.key").into() };
    let config = server_config(&identity, Some(&path("known.pem")), &["http/1.1"]).unwrap();
    let server = Server::start(|_| vec![good()], Some(config));
    let mut rig = rig(&server);
    rig.client.connections = Connections::Fresh;
    assert!(!rig.one().outcome.is_finished(), "let in without a certificate");
    sign(&stranger);
    rig.target.client_cert = Some(path("own.pem").display().to_string());
    rig.target.client_key = Some(path("own.key").display().to_string());
    let client = rig.start();
    let one = || run_on(&client, &rig.plan(&[Span::ZERO]), &Control::default()).1.remove(0);
    assert!(!one().outcome.is_finished(), "let in with a stranger's");
    sign(&known);
    assert!((0..600).any(|_| one().outcome.is_finished()), "never shown");
}
